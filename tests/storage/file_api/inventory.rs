//! What is public in trees of source files, by lines: the code is formatted by rustfmt, so indents
//! tell what belongs to what.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Public items: the modules that lead to them, and their names, `Type::member` for what belongs to
/// a type.
pub(crate) struct Inventory {
    items: BTreeSet<(String, String)>,
}

/// What encloses the lines that are read.
struct Container {
    name: String,
    kind: Kind,
    indent: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Members are public when they say so.
    Implementation,
    Struct,
    /// Constants are public.
    Flags,
    /// All members are public.
    Enum,
    Trait,
}

impl Inventory {
    /// Of these directories, each with the module that it is.
    pub(crate) fn of(directories: &[(&str, &Path)]) -> Self {
        let mut items = BTreeSet::new();
        for (module, directory) in directories {
            read_directory(directory, module, &mut items);
        }
        Self { items }
    }

    /// Whether there is such a public item. A path without modules is that of something that the
    /// root of the tree exports.
    pub(crate) fn has(&self, path: &str) -> bool {
        let is_module = |part: &&str| part.starts_with(|c: char| c.is_ascii_lowercase());
        let parts: Vec<_> = path.split("::").collect();
        let last = parts.len() - 1;
        let modules = parts[..last]
            .iter()
            .take_while(|part| is_module(part))
            .count();
        let (module, name) = (parts[..modules].join("::"), parts[modules..].join("::"));
        self.items.iter().any(|(there, item)| {
            // Modules that are private are left out of a path: `cufile::CuFileBatch` lies in
            // cufile::batch. Those that are public are not: nothing of `cufile` is named without
            // it.
            let inside = there == &module || there.starts_with(&format!("{module}::"));
            let at_root = module.is_empty() && !there.starts_with("cufile");
            *item == name && (inside || at_root)
        })
    }
}

fn read_directory(directory: &Path, module: &str, items: &mut BTreeSet<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let inner = match (module, stem) {
            (module, "mod") => module.to_owned(),
            ("", stem) => stem.to_owned(),
            (module, stem) => format!("{module}::{stem}"),
        };
        if matches!(stem, "tests" | "testing") {
            continue;
        }
        if path.is_dir() {
            read_directory(&path, &inner, items);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            items.extend(names(&text).into_iter().map(|name| (inner.clone(), name)));
        }
    }
}

/// The public items of one file.
fn names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut container: Option<Container> = None;
    for line in text.lines() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if let Some(inside) = &container {
            if indent == inside.indent && body.starts_with('}') {
                container = None;
            } else if indent == inside.indent + 4
                && let Some(member) = member(inside.kind, body)
            {
                names.insert(format!("{}::{member}", inside.name));
            }
            continue;
        }
        if indent == 0 && body.starts_with("mod tests") {
            break;
        }
        let (item, opened) = item(body, indent);
        names.extend(item);
        if body.ends_with('{') {
            container = opened;
        }
    }
    names
}

/// What a line declares, and what it opens.
fn item(body: &str, indent: usize) -> (Option<String>, Option<Container>) {
    let opens = |name: &str, kind| {
        Some(Container {
            name: name.to_owned(),
            kind,
            indent,
        })
    };
    if let Some(rest) = body.strip_prefix("impl") {
        let of = match rest.split_once(" for ") {
            Some((_, of)) => of,
            None => behind_generics(rest),
        };
        return (None, opens(word(of.trim_start()), Kind::Implementation));
    }
    let Some(rest) = body.strip_prefix("pub ") else {
        return (None, None);
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let Some((keyword, rest)) = rest.split_once(' ') else {
        return (None, None);
    };
    let name = word(rest);
    let kind = match keyword {
        // Only flags say what they are made of: `pub struct Flags: u32 {`.
        "struct" if rest[name.len()..].starts_with(':') => Kind::Flags,
        "struct" => Kind::Struct,
        "enum" => Kind::Enum,
        "trait" => Kind::Trait,
        "fn" | "const" | "static" | "type" => return (Some(name.to_owned()), None),
        _ => return (None, None),
    };
    (Some(name.to_owned()), opens(name, kind))
}

/// The name of a member, where it is public.
fn member(kind: Kind, body: &str) -> Option<&str> {
    let name = match kind {
        Kind::Implementation => function_or_constant(body.strip_prefix("pub ")?)?,
        Kind::Trait => function_or_constant(body)?,
        Kind::Struct => body.strip_prefix("pub ")?,
        Kind::Flags => body.strip_prefix("const ")?,
        Kind::Enum => body,
    };
    let name = word(name);
    (!name.is_empty()).then_some(name)
}

fn function_or_constant(body: &str) -> Option<&str> {
    let body = body.strip_prefix("const fn ").unwrap_or(body);
    let body = body.strip_prefix("unsafe ").unwrap_or(body);
    let body = body.strip_prefix("async ").unwrap_or(body);
    match body.split_once(' ') {
        Some(("fn" | "const", rest)) => Some(rest),
        // `const fn` was taken off above.
        _ => body.contains('(').then_some(body),
    }
}

/// Behind `<…>`, where it begins so.
fn behind_generics(text: &str) -> &str {
    if !text.starts_with('<') {
        return text;
    }
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    text
}

/// The identifier at the beginning.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}
