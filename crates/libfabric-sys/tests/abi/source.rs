//! Reads the declarations out of our own source text: what there is, and which C type each means.

/// A declaration, by its Rust name and type.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) rust_type: String,
}

/// A struct and its fields.
#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) fields: Vec<Declared>,
}

/// The text without comments, each run of white space as one blank, up to the unit tests.
fn condensed(source: &str) -> String {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

/// Every `pub const`.
pub(crate) fn constants(source: &str) -> Vec<String> {
    let code = condensed(source);
    code.split("pub const ")
        .skip(1)
        .map(|rest| up_to(rest, ":"))
        .collect()
}

/// Every `pub type … = u32`: the C enumerations.
pub(crate) fn enumerations(source: &str) -> Vec<String> {
    let code = condensed(source);
    let types = code.split("pub type ").skip(1).map(|rest| up_to(rest, ";"));
    types
        .filter_map(|text| text.strip_suffix(" = u32").map(str::to_owned))
        .collect()
}

/// Every struct with C's layout that has public fields and a C name, and the one named `private`.
pub(crate) fn structs(source: &str, private: Option<&str>) -> Vec<Struct> {
    let code = condensed(source);
    let mut found = Vec::new();
    for (head, body) in blocks(&code, "struct ") {
        let is_c = head.starts_with("fi");
        if is_c || Some(head.as_str()) == private {
            found.push(Struct {
                fields: fields(&body),
                name: head,
            });
        }
    }
    found
}

/// Every `pub unsafe fn fi_…` outside an `impl`, as a pointer type.
pub(crate) fn functions(source: &str) -> Vec<Declared> {
    let code = condensed(source);
    let mut found = Vec::new();
    for text in code.split("pub unsafe fn ").skip(1) {
        let signature = up_to(text, "{");
        let (name, rest) = signature.split_once('(').expect("a function has arguments");
        found.push(Declared {
            name: name.to_owned(),
            rust_type: format!("fn({rest}"),
        });
    }
    found
}

/// What stands between `keyword` and `{`, and between the braces. Structs have no braces inside.
fn blocks(code: &str, keyword: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for rest in code.split(keyword).skip(1) {
        let (head, body) = rest.split_once('{').unwrap_or_default();
        let is_name =
            !head.trim().is_empty() && head.trim().chars().all(|c| c.is_alphanumeric() || c == '_');
        if is_name {
            found.push((head.trim().to_owned(), up_to(body, "}")));
        }
    }
    found
}

/// The fields of a struct's body. A comma ends a field only outside brackets.
fn fields(body: &str) -> Vec<Declared> {
    split_outside_brackets(body)
        .iter()
        .filter_map(|field| field.trim().split_once(':'))
        .map(|(name, rust_type)| Declared {
            name: name.trim_start_matches("pub ").to_owned(),
            rust_type: rust_type.trim().to_owned(),
        })
        .collect()
}

fn split_outside_brackets(text: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let mut parts = vec![String::new()];
    let mut last = ' ';
    for c in text.chars() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if last != '-' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                last = c;
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is a first part").push(c);
        last = c;
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn up_to(text: &str, end: &str) -> String {
    text.split(end).next().unwrap_or_default().trim().to_owned()
}

/// The C type that a Rust type means; none for our own unions and for flexible arrays.
pub(crate) fn c_type(rust: &str, enumerations: &[String]) -> Option<String> {
    // rustfmt ends a list that it breaks with a comma.
    let rust = rust.trim().trim_end_matches(',').trim();
    if let Some(inner) = rust
        .strip_prefix("Option<")
        .and_then(|rest| rest.strip_suffix('>'))
    {
        return c_type(inner, enumerations);
    }
    if let Some((_, function)) = rust.split_once("fn(") {
        return c_function(function, enumerations);
    }
    if let Some(array) = rust
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        let (element, count) = array.split_once(';')?;
        let count = count.trim();
        return (count != "0").then_some(format!("{}[{count}]", c_type(element, enumerations)?));
    }
    if let Some(target) = rust.strip_prefix("*mut ") {
        return Some(format!("{} *", c_type(target, enumerations)?));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        assert!(
            !target.starts_with('*'),
            "a constant pointer to a pointer: {rust}"
        );
        return Some(format!("const {} *", c_type(target, enumerations)?));
    }
    c_name(rust, enumerations)
}

/// The C type of `args) -> result`, as a pointer to a function.
fn c_function(text: &str, enumerations: &[String]) -> Option<String> {
    let (arguments, result) = text.rsplit_once(')')?;
    let result = result.trim().strip_prefix("->").map_or("c_void", str::trim);
    let mut types = Vec::new();
    for argument in split_outside_brackets(arguments) {
        let (_, rust) = argument.split_once(':').unwrap_or(("", &argument));
        types.push(c_type(rust, enumerations)?);
    }
    if types.is_empty() {
        types.push("void".to_owned());
    }
    Some(format!(
        "{} (*)({})",
        c_type(result, enumerations)?,
        types.join(", ")
    ))
}

fn c_name(rust: &str, enumerations: &[String]) -> Option<String> {
    let name = match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "bool" => "_Bool",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "fi_addr_t" => "fi_addr_t",
        "fi_mr_attr_memory" | "fi_mr_attr_device" => return None,
        name if enumerations.iter().any(|known| known == name) => {
            return Some(format!("enum {name}"));
        }
        name => return Some(format!("struct {name}")),
    };
    Some(name.to_owned())
}
