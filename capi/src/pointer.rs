//! Pointers of C: checked for null, read and written.

#![allow(unsafe_code)] // What C gives is read here.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::status::{FCAST_UNSUPPORTED, Failure};

/// Where a result goes.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Errors
    ///
    /// It is null.
    ///
    /// # Safety
    ///
    /// Null, or good for a write of a `T` for as long as this value lives.
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Result<Self, Failure> {
        NonNull::new(pointer).map(Self).ok_or_else(|| null(name))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised that it is good for this write.
        unsafe { self.0.write(value) };
    }
}

/// Writes a result that the caller need not want.
///
/// # Safety
///
/// Null, or good for a write of a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if let Some(place) = NonNull::new(place) {
        // SAFETY: not null, and the caller answers for the rest.
        unsafe { place.write(value) };
    }
}

#[cold]
pub(crate) fn null(name: &'static str) -> Failure {
    Failure::invalid(format!("{name} is null"))
}

/// Bytes of the caller's; null is fine where there are none.
///
/// # Safety
///
/// Null, or `len` bytes that nobody writes to for as long as `'a`.
#[inline]
pub(crate) unsafe fn bytes<'a>(
    data: *const u8,
    len: usize,
    name: &'static str,
) -> Result<&'a [u8], Failure> {
    // SAFETY: passed on.
    unsafe { array(data, len, name) }
}

/// As `bytes`, of whatever C has an array of.
///
/// # Safety
///
/// Null, or `count` values that nobody writes to for as long as `'a`.
#[inline]
pub(crate) unsafe fn array<'a, T>(
    data: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null(name));
    }
    if !data.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::invalid(format!(
            "{name}: {count} of them at {data:p} can't be"
        )));
    }
    // SAFETY: it is neither null nor unaligned nor too long, and the caller answers for the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// As `array`, of values that are written.
///
/// # Safety
///
/// Null, or `count` places that nobody else reads or writes for as long as `'a`.
pub(crate) unsafe fn array_out<'a, T>(
    data: *mut T,
    count: usize,
    name: &'static str,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    // SAFETY: places that may be without a value are read as such alone.
    let places = unsafe { array(data.cast::<MaybeUninit<T>>().cast_const(), count, name) }?;
    let pointer = places.as_ptr().cast_mut();
    // SAFETY: `array` checked it, and the caller has promised that nobody else uses them.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, places.len()) })
}

/// A text of the caller's; `None` where it is null.
///
/// # Safety
///
/// Null, or a text that ends with a zero, and that nobody writes to for as long as `'a`.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    name: &'static str,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller answers for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text
        .to_str()
        .map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))?;
    Ok(Some(text))
}

/// As `text`, where there must be one.
///
/// # Safety
///
/// As `text`.
pub(crate) unsafe fn needed_text<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<&'a str, Failure> {
    // SAFETY: passed on.
    unsafe { text(pointer, name) }?.ok_or_else(|| null(name))
}

/// A path of the caller's, of whatever bytes.
///
/// # Safety
///
/// As `text`.
pub(crate) unsafe fn path<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<&'a Path, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null, and the caller answers for the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// A struct of settings, whose first field is its size in bytes.
///
/// # Safety
///
/// Of C's layout, beginning with a `usize`, and all zeros are a value of it.
pub(crate) unsafe trait Sized0: Copy {}

/// Settings of the caller's, who may have an older or newer header; all defaults where it is null.
///
/// # Safety
///
/// Null, or as many bytes as its first field says, which nobody writes to meanwhile.
pub(crate) unsafe fn sized<T: Sized0>(
    settings: *const T,
    name: &'static str,
) -> Result<T, Failure> {
    let mut value = MaybeUninit::<T>::zeroed();
    if settings.is_null() {
        // SAFETY: all zeros are a value (`Sized0`).
        return Ok(unsafe { value.assume_init() });
    }
    // SAFETY: not null, and the first field is a `usize` (`Sized0`).
    let size = unsafe { settings.cast::<usize>().read_unaligned() };
    // A size that cuts a field in two, maybe a pointer, is of no header.
    let whole = size.is_multiple_of(size_of::<usize>());
    if !whole || !(size_of::<usize>()..=1 << 16).contains(&size) {
        let text = format!("{name}: its field size is {size}: set it to sizeof the struct");
        return Err(Failure::invalid(text));
    }
    // SAFETY: the caller has promised `size` bytes.
    let given = unsafe { std::slice::from_raw_parts(settings.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if given[known..].iter().any(|byte| *byte != 0) {
        let text = format!(
            "{name}: a setting behind byte {known} is not known to this version: link a newer one"
        );
        return Err(Failure::new(FCAST_UNSUPPORTED, text));
    }
    // SAFETY: both have `known` bytes, and they are not the same.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), value.as_mut_ptr().cast::<u8>(), known)
    };
    // SAFETY: it was all zeros, which is a value (`Sized0`), and C wrote its own over it.
    Ok(unsafe { value.assume_init() })
}

/// Writes a struct whose first field is its size: as much as the caller's has, whose size stays.
///
/// # Errors
///
/// It is null, or its size is none.
///
/// # Safety
///
/// Null, or as many writable bytes as its first field says, used by nobody else.
pub(crate) unsafe fn write_sized<T: Sized0>(
    place: *mut T,
    value: &T,
    name: &'static str,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null, and the first field is a `usize` (`Sized0`).
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=1 << 16).contains(&size) {
        let text = format!("{name}: its field size is {size}: set it to sizeof the struct");
        return Err(Failure::invalid(text));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller has promised `size` writable bytes, of which this skips the first field.
    let rest = unsafe { place.cast::<u8>().add(size_of::<usize>()) };
    // SAFETY: `T` has `known` bytes at least, which all have values: C's layouts of numbers.
    let from = unsafe {
        std::ptr::from_ref(value)
            .cast::<u8>()
            .add(size_of::<usize>())
    };
    // SAFETY: both have `known` bytes with the field size, which is skipped on both sides.
    unsafe { std::ptr::copy_nonoverlapping(from, rest, known - size_of::<usize>()) };
    // SAFETY: what a newer header has besides is in the `size` bytes, too.
    let more = unsafe { rest.add(known - size_of::<usize>()) };
    // SAFETY: as above.
    unsafe { more.write_bytes(0, size - known) };
    Ok(())
}

/// Writes a text and the zero behind it, cut to `capacity` bytes; `*len` is what all of it needs.
///
/// # Safety
///
/// `text`: null, or `capacity` bytes that are the caller's to write. `len`: null, or writable.
pub(crate) unsafe fn write_text(
    content: &str,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let places = unsafe { array_out(text.cast::<u8>(), capacity, "text") }?;
    if let Some((zero, places)) = places.split_last_mut() {
        let fits = content.len().min(places.len());
        for (place, byte) in places.iter_mut().zip(&content.as_bytes()[..fits]) {
            place.write(*byte);
        }
        let end = places.get_mut(fits).unwrap_or(zero);
        end.write(0);
    }
    if let Some(len) = NonNull::new(len) {
        // SAFETY: not null, and the caller has promised that it is writable.
        unsafe { len.write(content.len() + 1) };
    }
    Ok(())
}
