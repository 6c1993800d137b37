//! `Debug` of an error is its words: `main` prints it, and so does `unwrap`.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::buffer::Payload;
use crate::endpoint::{BatchError, PushError, Refused, SendErrorKind};
use crate::error::{CompletionError, Error, FabricErrno};
use crate::future::{Failed, SendFailure};
use crate::memory::{MemoryError, RegisterError};
use crate::object::{ObjectError, TransferError, TransferErrorKind};
use crate::protocol::close_reason::CloseReason;
use crate::storage::{FileError, FileErrorKind, FileOperation};
use crate::stream::StreamError;

/// Of each layer one, of each form of type one: enums, structs, with a value that comes back.
#[test]
fn an_error_that_comes_out_of_main_is_printed_in_words() {
    let refused = || Refused::new(SendErrorKind::Closing, Payload::default(), 7);
    let file = FileError::new(
        FileOperation::Open,
        Path::new("run.dat"),
        FileErrorKind::QueueFull,
    );
    let batch: BatchError = BatchError {
        sent: 2,
        refused: refused(),
    };
    let failed = Failed::<Payload> {
        given: None,
        why: SendFailure::Endpoint("it is broken"),
    };
    let errors: Vec<Box<dyn StdError>> = vec![
        Box::new(Error::Closed(CloseReason::Finished)),
        Box::new(CloseReason::PeerLost { errno: None }),
        Box::new(libfabric_sys::LoadError::TooOld {
            path: PathBuf::from("libfabric.so.1"),
            version: 1,
        }),
        Box::new(refused()),
        Box::new(batch),
        Box::new(PushError::Closing),
        Box::new(failed),
        Box::new(CompletionError::new(libc::EIO)),
        Box::new(MemoryError::TooLarge { asked_bytes: 9 }),
        Box::new(RegisterError::DomainLimit { limit: 2 }),
        Box::new(ObjectError::Register(RegisterError::DomainLimit {
            limit: 2,
        })),
        Box::new(TransferError {
            kind: TransferErrorKind::Deadline,
            posted: true,
        }),
        Box::new(file),
        Box::new(StreamError::SourceChanged {
            what: "its length".to_owned(),
        }),
        Box::new(Error::Register(RegisterError::Device {
            kind: crate::memory::RegionKind::Host,
            reason: Arc::from("why"),
        })),
        Box::new(crate::cuda::CudaUnavailable::Broken {
            path: PathBuf::from("libcuda.so.1"),
            symbol: "cuInit",
            reason: "it has none".to_owned(),
        }),
        Box::new(fabricast_process::Forked { made_by: 7 }),
        Box::new(Error::fabric("fi_listen", FabricErrno::new(98).get())),
    ];
    for error in errors {
        let words = error.to_string();
        assert_eq!(format!("{error:?}"), words);
        // What is beneath it is in its words, so nothing of the chain is lost.
        let mut next = error.source();
        while let Some(source) = next {
            assert!(words.contains(&source.to_string()), "{words}: {source}");
            next = source.source();
        }
    }
}

/// No public error of any crate has another `Debug`.
#[test]
fn every_public_error_says_its_words_in_debug() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    find(&root.join("src"), &mut sources);
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        find(&entry.unwrap().path().join("src"), &mut sources);
    }
    let (mut errors, mut others) = (0, BTreeSet::new());
    for path in &sources {
        let text = fs::read_to_string(path).unwrap();
        for name in errors_of(&text) {
            errors += 1;
            let worded = text
                .split("debug_as_words!(")
                .skip(1)
                .any(|call| names(call.split(");").next().unwrap(), &name));
            if !worded {
                others.insert(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(errors > 60, "{errors} were found");
    assert!(others.is_empty(), "these print no words: {others:#?}");
}

fn find(under: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, sources);
        } else if path.extension().is_some_and(|it| it == "rs") {
            sources.push(path);
        }
    }
}

/// Names of the public errors that a file defines.
fn errors_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut derived = false;
    for line in text.lines() {
        derived |= line.starts_with("#[derive(") && line.contains("thiserror::Error");
        let by_hand = line
            .split_once("std::error::Error for ")
            .filter(|_| line.starts_with("impl"))
            .map(|(_, name)| name);
        let item = ["pub enum ", "pub struct "]
            .iter()
            .find_map(|head| line.strip_prefix(head))
            .filter(|_| derived);
        if let Some(name) = item.or(by_hand) {
            let end = name.find(|c: char| !c.is_alphanumeric());
            found.push(name[..end.unwrap_or(name.len())].to_owned());
        }
        let is_item = ["pub", "enum", "struct"]
            .iter()
            .any(|it| line.starts_with(it));
        derived &= !is_item;
    }
    found
}

/// Whether a list of types has one of this name.
fn names(list: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    list.split(|c| !is_part(c)).any(|word| word == name)
}
