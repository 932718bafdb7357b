//! The contract across the boundary of a shared library.
//!
//! - [`crate::export_provider!`] makes a plugin of a provider, in one line of the plugin's crate.
//! - [`open`] turns a library file into a [`Library`] whose provider can be called like any other.
//! - `table` is what crosses the boundary: one append-only table with an entry per operation; `context` what is called back
//!   while an operation runs. Every entry carries the messages of [`crate::wire`] and nothing else.
//!
//! Not here: which files are opened, whether they are trusted, and what becomes of the ones that fail (`ah-host`). Nothing
//! outside this folder names the ABI library.
//!
//! # Versions
//!
//! [`ABI_MAJOR`] changes when the table, the context or the encoding changes in a way that older plugins cannot follow; libraries of
//! another major version are refused, and are looked for in a folder of their own. An operation or a callback that is appended raises
//! [`ABI_MINOR`]; either side may be the older one, and what is missing reads as `Unsupported`. What may change in a message is said at [`crate::request`].

#![allow(unsafe_code)]

#[allow(non_camel_case_types, reason = "the ABI library's names")]
mod context;
mod guest;
mod host;
mod layout;
mod panics;
#[allow(non_camel_case_types, reason = "the ABI library's names")]
mod table;

#[doc(hidden)]
#[allow(non_camel_case_types, dead_code, reason = "the ABI library's names, and accessors that nobody calls")]
pub mod frozen;

pub use guest::{Export, IntoProvider, Slot};
pub use host::{Library, Loaded, OpenError, SharedLibrary, load, open};

/// What the macro [`crate::export_provider!`] expands to; not for use by hand.
#[doc(hidden)]
pub mod exported {
    pub use super::guest::header;
    pub use abi_stable::library::LibHeader;
}

/// Libraries of another major version cannot be used.
pub const ABI_MAJOR: u32 = 1;

/// How many times the table or the context has grown.
pub const ABI_MINOR: u32 = 1;

/// `ABI_MAJOR.ABI_MINOR.0`, as the ABI library wants it.
const ABI_VERSION: &str = "1.1.0";

/// The symbol that every plugin exports. Fixed by the ABI library (a test compares), repeated here because an attribute takes
/// a literal only.
pub const SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// The version of the ABI that a library was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbiVersion {
    /// See [`ABI_MAJOR`].
    pub major: u32,
    /// See [`ABI_MINOR`].
    pub minor: u32,
}

impl AbiVersion {
    /// The version of this build.
    pub const OURS: Self = Self { major: ABI_MAJOR, minor: ABI_MINOR };

    /// Reads `1.0.0`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some(Self { major: parts.next()??, minor: parts.next()?? })
    }
}

impl std::fmt::Display for AbiVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::{ABI_VERSION, AbiVersion, SYMBOL};

    #[test]
    fn the_symbol_is_the_one_the_abi_library_looks_for() {
        assert_eq!(SYMBOL, abi_stable::library::ROOT_MODULE_LOADER_NAME);
    }

    #[test]
    fn the_version_text_is_that_of_the_numbers() {
        assert_eq!(AbiVersion::parse(ABI_VERSION), Some(AbiVersion::OURS));
        assert_eq!(ABI_VERSION, format!("{}.0", AbiVersion::OURS));
        assert_eq!(AbiVersion::parse("x.1"), None);
        assert_eq!(AbiVersion::parse("1"), None);
    }
}
