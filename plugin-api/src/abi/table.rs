//! What crosses the boundary: the table of operations.
//!
//! Append only. A new operation gets a new entry **at the end**, the former table goes to [`super::frozen`], and
//! [`super::ABI_MINOR`] is raised. Entries are never removed, moved or given another type.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RResult, RSlice, RVec};

use super::context::RawContext;
use crate::wire::Op;

/// Bytes of an answer, or of an [`crate::Error`], both CBOR. They are freed by whoever allocated them (`RVec` sees to it).
pub(crate) type Answer = RResult<RVec<u8>, RVec<u8>>;

/// One operation: the request of [`crate::wire::serve`], its descriptors (borrowed for the call; the guest duplicates them), and
/// what runs beside it.
pub(crate) type Entry = extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer;

/// Declares the table with one optional entry per operation, and the way from an [`Op`] to its entry on both sides.
macro_rules! table {
    ($($field:ident = $op:ident),+ $(,)?) => {
        /// The table that a plugin exports.
        #[repr(C)]
        #[derive(StableAbi)]
        #[sabi(kind(Prefix(prefix_ref = Table_Ref, prefix_fields = Table_Prefix)))]
        #[sabi(missing_field(option))]
        pub(crate) struct Table {
            /// Makes the provider. Answers nothing, or a [`super::guest::StartError`].
            pub(crate) start: extern "C" fn() -> Answer,
            /// Answers a [`crate::Description`].
            #[sabi(last_prefix_field)]
            pub(crate) describe: extern "C" fn() -> Answer,
            // Spelled out: the derive knows a function pointer by its tokens only.
            $(pub(crate) $field: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,)+
        }

        impl Table_Ref {
            /// The entry of an operation, if the plugin has it.
            pub(crate) fn entry(self, op: Op) -> Option<Entry> {
                match op {
                    $(Op::$op => self.$field(),)+
                    Op::Unknown => None,
                }
            }
        }

        impl Table {
            /// The table of the provider that `E` exports.
            pub(crate) const fn of<E: super::Export>() -> Self {
                Self {
                    start: super::guest::start::<E>,
                    describe: super::guest::describe::<E>,
                    $($field: super::guest::call::<E, { Op::$op as usize }>,)+
                }
            }
        }
    };
}

table! {
    probe = Probe,
    snapshot = Snapshot,
    sync = Sync,
    list = List,
    stat = Stat,
    destroy = Destroy,
    mount = Mount,
    unmount = Unmount,
    clone_snapshot = Clone,
    diff = Diff,
    read_dir = ReadDir,
    read = Read,
    lookup = Lookup,
    usage = Usage,
    reclaim = Reclaim,
    convert = Convert,
}

impl RootModule for Table_Ref {
    abi_stable::declare_root_module_statics! {Table_Ref}
    const BASE_NAME: &'static str = super::host::MODULE;
    const NAME: &'static str = super::host::MODULE;
    const VERSION_STRINGS: VersionStrings = VersionStrings::new(super::ABI_VERSION);
}
