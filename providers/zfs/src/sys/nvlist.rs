//! Name-value lists: the arguments and answers of OpenZFS's libraries.
//!
//! Built through [`NvList`], read into an owned tree of [`Value`]s at once: the lists are small, and nothing borrowed from C goes
//! about.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

use super::bindings::core as raw;
use super::core::Core;

/// A list that is being built, freed when dropped.
pub(crate) struct NvList {
    raw: *mut raw::nvlist_t,
    core: &'static Core,
}

/// What a list that was given back has under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// The name alone.
    Flag,
    /// Text, without the NUL at its end.
    Text(Vec<u8>),
    /// A number of any width.
    Number(u64),
    /// A list in a list.
    List(Values),
    /// A kind that nothing here needs.
    Other,
}

/// A list that was given back.
pub(crate) type Values = BTreeMap<Vec<u8>, Value>;

impl Value {
    /// The list, if it is one.
    pub(crate) fn list(&self) -> Option<&Values> {
        if let Self::List(values) = self { Some(values) } else { None }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl NvList {
    /// An empty list with unique names.
    pub(crate) fn new(core: &'static Core) -> Self {
        let mut list = null_mut();
        // SAFETY: `list` is a place for the pointer; what comes back is ours, and freed in `drop`.
        let status = unsafe { core.raw().nvlist_alloc(&raw mut list, raw::NV_UNIQUE_NAME, 0) };
        // It fails for want of memory only, where Rust's own allocations would end the process too.
        assert!(status == 0 && !list.is_null(), "no memory for a name-value list");
        Self { raw: list, core }
    }

    /// A list of names alone.
    pub(crate) fn of_names<'a>(core: &'static Core, names: impl IntoIterator<Item = &'a CStr>) -> Self {
        let mut list = Self::new(core);
        for name in names {
            // SAFETY: `raw` is a list of ours; the name is copied.
            let status = unsafe { core.raw().nvlist_add_boolean(list.as_mut_ptr(), name.as_ptr()) };
            assert!(status == 0, "no memory for a name-value list");
        }
        list
    }

    /// A list of texts.
    pub(crate) fn of_texts(core: &'static Core, texts: &[(CString, CString)]) -> Self {
        let mut list = Self::new(core);
        for (name, text) in texts {
            // SAFETY: `raw` is a list of ours; name and text are copied.
            let status = unsafe { core.raw().nvlist_add_string(list.as_mut_ptr(), name.as_ptr(), text.as_ptr()) };
            assert!(status == 0, "no memory for a name-value list");
        }
        list
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, name: &CStr, number: u64) {
        // SAFETY: `raw` is a list of ours; the name is copied.
        let status = unsafe { self.core.raw().nvlist_add_uint64(self.as_mut_ptr(), name.as_ptr(), number) };
        assert!(status == 0, "no memory for a name-value list");
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut raw::nvlist_t {
        self.raw
    }

    /// Takes over a list that the library has allocated, and reads it; none if there is none.
    ///
    /// # Safety
    /// `list` is null or a list that the caller owns.
    pub(super) unsafe fn take(core: &'static Core, list: *mut raw::nvlist_t) -> Values {
        if list.is_null() {
            return Values::new();
        }
        let list = Self { raw: list, core };
        // SAFETY: the list is valid until `list` is dropped.
        unsafe { read(core, list.raw) }
    }
}

impl Drop for NvList {
    fn drop(&mut self) {
        // SAFETY: a list of ours, and nobody has a pointer into it.
        unsafe { self.core.raw().nvlist_free(self.raw) }
    }
}

/// Copies a list.
///
/// # Safety
/// `list` is a valid list, and nobody changes it meanwhile.
pub(super) unsafe fn read(core: &'static Core, list: *mut raw::nvlist_t) -> Values {
    let lib = core.raw();
    let mut values = Values::new();
    let mut pair = null_mut();
    loop {
        // SAFETY: as the caller promises; `pair` is null or one of this list.
        pair = unsafe { lib.nvlist_next_nvpair(list, pair) };
        if pair.is_null() {
            return values;
        }
        // SAFETY: a pair's name ends with NUL and lives as long as the list.
        let name = unsafe { CStr::from_ptr(lib.nvpair_name(pair)) }.to_bytes().to_vec();
        // SAFETY: `pair` is one of this list.
        values.insert(name, unsafe { value(core, pair) });
    }
}

/// # Safety
/// `pair` is one of a valid list.
unsafe fn value(core: &'static Core, pair: *mut raw::nvpair_t) -> Value {
    let lib = core.raw();
    // SAFETY: as the caller promises, here and below; each getter is called for its own type only, and what it gives lives as long
    // as the list.
    match unsafe { lib.nvpair_type(pair) } {
        raw::DATA_TYPE_BOOLEAN => Value::Flag,
        raw::DATA_TYPE_STRING => {
            let mut text = null_mut();
            // SAFETY: see above.
            unsafe {
                if lib.nvpair_value_string(pair, &raw mut text) != 0 || text.is_null() {
                    return Value::Other;
                }
                Value::Text(CStr::from_ptr(text).to_bytes().to_vec())
            }
        }
        raw::DATA_TYPE_UINT64 => {
            let mut number = 0;
            // SAFETY: see above.
            let status = unsafe { lib.nvpair_value_uint64(pair, &raw mut number) };
            if status == 0 { Value::Number(number) } else { Value::Other }
        }
        raw::DATA_TYPE_INT32 => {
            let mut number = 0;
            // SAFETY: see above.
            let status = unsafe { lib.nvpair_value_int32(pair, &raw mut number) };
            if status == 0 { Value::Number(u64::from(number.unsigned_abs())) } else { Value::Other }
        }
        raw::DATA_TYPE_NVLIST => {
            let mut list = null_mut();
            // SAFETY: see above.
            unsafe {
                if lib.nvpair_value_nvlist(pair, &raw mut list) != 0 || list.is_null() {
                    return Value::Other;
                }
                Value::List(read(core, list))
            }
        }
        _ => Value::Other,
    }
}
