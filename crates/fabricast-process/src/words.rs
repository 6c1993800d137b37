//! `debug_as_words!`: errors whose `Debug` is what they say.

/// `Debug` of these errors is their `Display`.
///
/// `main` prints the error that it returns by `Debug`, and so do `unwrap` and `expect`: a person
/// reads it, and a derived one has names of fields where the words are. A type with parameters
/// comes by itself, its parameters in front: `debug_as_words!([T] Refused<T>)`.
#[macro_export]
macro_rules! debug_as_words {
    ([$($parameters:tt)*] $error:ty) => {
        impl<$($parameters)*> ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    };
    ($($error:ty),+) => { $($crate::debug_as_words!([] $error);)+ };
}
