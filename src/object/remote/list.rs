//! `RemoteList`: a list, part by part.

use std::time::Instant;
use std::vec::IntoIter;

use crate::object::remote::{RemoteError, RemoteObjects};
use crate::object::store::{ListPage, ListQuery, ListedObject};
use crate::object::wire::Entries;

/// Entries that are asked for at once; a service may give fewer.
const PAGE: usize = 1000;

/// The objects of a list, in the order of the bytes of their names. It ends after an error.
#[derive(Debug)]
#[must_use = "the service is asked as the list is read"]
pub struct RemoteList<'r> {
    remote: &'r mut RemoteObjects,
    query: ListQuery,
    deadline: Instant,
    page: IntoIter<ListedObject>,
    more: bool,
}

impl<'r> RemoteList<'r> {
    pub(super) fn new(remote: &'r mut RemoteObjects, prefix: &str, deadline: Instant) -> Self {
        Self {
            remote,
            query: ListQuery {
                prefix: prefix.into(),
                start_after: String::new(),
                limit: PAGE,
            },
            deadline,
            page: Vec::new().into_iter(),
            more: true,
        }
    }

    fn next_page(&mut self) -> Result<(), RemoteError> {
        let page = self.remote.list_page(&self.query, self.deadline)?;
        if let Some(last) = page.objects.last() {
            last.name.as_str().clone_into(&mut self.query.start_after);
        }
        self.more = page.more;
        self.page = page.objects.into_iter();
        Ok(())
    }
}

impl Iterator for RemoteList<'_> {
    type Item = Result<ListedObject, RemoteError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.page.next() {
                return Some(Ok(object));
            }
            if !std::mem::take(&mut self.more) {
                return None;
            }
            if let Err(error) = self.next_page() {
                return Some(Err(error));
            }
        }
    }
}

/// A part of a list, if it is one of what was asked for.
pub(super) fn page_of(
    query: &ListQuery,
    entries: Entries<'_>,
    more: bool,
) -> Result<ListPage, RemoteError> {
    let objects: Vec<_> = entries.iter().collect();
    if objects
        .iter()
        .any(|object| !query.takes(object.name.as_str()))
    {
        return Err(RemoteError::Violation(
            "a list with names that were not asked for",
        ));
    }
    if objects.len() > query.limit || (more && objects.is_empty() && query.limit > 0) {
        return Err(RemoteError::Violation(
            "a list with too many objects, or too few",
        ));
    }
    Ok(ListPage { objects, more })
}
