//! Lists of a store's objects, which the program adds to.

#![allow(unsafe_code)] // A function that C calls.

use std::ffi::c_char;

use fabricast::object::{ListPage, ListQuery, ListedObject, ObjectName, StoreError};

use crate::call::call;
use crate::object_info::fcast_object_info;
use crate::object_store::store_error;
use crate::pointer;
use crate::status::{FCAST_NO_RESOURCES, FCAST_OK, Failure, fcast_status};
use crate::table::Table;

static LISTS: Table<Listing> = Table::new(47, "list of objects");

/// A list that the function `list` of a store adds to. It is gone when that returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_list {
    /// Its number; 0: none.
    pub id: u64,
}

/// A list that is being made.
pub(crate) struct Listing {
    query: ListQuery,
    page: ListPage,
}

impl Listing {
    /// Has a function make a list.
    pub(crate) fn run(
        query: &ListQuery,
        make: impl FnOnce(fcast_object_list) -> fcast_status,
    ) -> Result<ListPage, StoreError> {
        let listing = Self {
            query: query.clone(),
            page: ListPage::default(),
        };
        let id = LISTS.insert(listing).map_err(|_| StoreError::Busy)?;
        let status = make(fcast_object_list { id });
        let Ok(Self { page, .. }) = LISTS.take(id) else {
            // It goes when that call ends.
            let _ = LISTS.release(id);
            let text = "its list returned while another thread added to it";
            return Err(StoreError::Failed(text.to_owned()));
        };
        // A function may answer what it was told when the list was full.
        if status == FCAST_OK || (status == FCAST_NO_RESOURCES && page.more) {
            return Ok(page);
        }
        Err(store_error("list", status))
    }

    fn add(&mut self, name: &str, info: &fcast_object_info) -> Result<(), Failure> {
        let name = ObjectName::new(name)?;
        if !self.query.takes(name.as_str()) {
            return Ok(());
        }
        let info = info.parse().map_err(Failure::invalid)?;
        if let Some(last) = self.page.objects.last().filter(|last| last.name >= name) {
            let last = &last.name;
            let text = format!("{name} comes behind {last}: names are added in their order, once");
            return Err(Failure::invalid(text));
        }
        if self.page.objects.len() == self.query.limit {
            self.page.more = self.query.limit > 0;
            let text = "the list has as many as it takes: answer FCAST_OK";
            return Err(Failure::new(FCAST_NO_RESOURCES, text));
        }
        self.page.objects.push(ListedObject {
            name,
            size: info.size,
            etag: info.etag,
            modified: info.modified,
        });
        Ok(())
    }
}

/// Adds an object to a list: its name, and of `info` the size, the etag and the time. One that the
/// list does not take, for its prefix or where it begins, is left out, which is FCAST_OK, so that a
/// store may just add all that it has. One thread at a time, within the function `list`.
///
/// FCAST_NO_RESOURCES: the list is full, and says that there are more. FCAST_INVALID: the name, its
/// order or the etag.
///
/// # Safety
///
/// `name`: NULL, or a text that ends with a zero; `info`: NULL, or a struct that is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_list_add(
    list: fcast_object_list,
    name: *const c_char,
    info: *const fcast_object_info,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        // SAFETY: the caller's promise.
        let info = unsafe { pointer::array(info, 1, "info") }?;
        LISTS.enter(list.id)?.add(name, &info[0])
    })
}
