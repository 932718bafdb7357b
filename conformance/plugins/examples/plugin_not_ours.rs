//! A shared library of something else.

#![allow(unsafe_code)]

/// Something else.
// SAFETY: no other symbol of this library has that name.
#[unsafe(no_mangle)]
pub extern "C" fn something_else() -> u32 {
    7
}
