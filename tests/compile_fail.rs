//! Misuse that does not compile: one file of `tests/ui` each, with what the compiler says.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
