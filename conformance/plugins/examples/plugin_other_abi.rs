//! Built for another major version of the ABI.

#![allow(dead_code, missing_docs, non_camel_case_types, reason = "the ABI library's macros")]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;

/// A table of the future.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = Table_Ref, prefix_fields = Table_Prefix)))]
pub struct Table {
    #[sabi(last_prefix_field)]
    everything: extern "C" fn() -> u64,
}

impl RootModule for Table_Ref {
    abi_stable::declare_root_module_statics! {Table_Ref}
    const BASE_NAME: &'static str = "ah_provider";
    const NAME: &'static str = "ah_provider";
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("2.0.0");
}

extern "C" fn everything() -> u64 {
    42
}

/// Gives the table.
#[abi_stable::export_root_module]
pub fn table() -> Table_Ref {
    Table { everything }.leak_into_prefix()
}
