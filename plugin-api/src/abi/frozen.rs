//! The table as it was one operation ago, kept so that a test can build a plugin against it and see it work with this host.
//!
//! A copy by hand on purpose: whoever appends an operation copies the former table to this place, and leaves the rest alone.
//! This one is 1.0, which ended with `reclaim`. It must be in this crate, because the ABI library compares the names of types
//! together with those of their crates.

use abi_stable::StableAbi;
use abi_stable::library::{CheckTypeLayout, LibHeader, RootModule, RootModuleResult};
use abi_stable::prefix_type::WithMetadata;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::RSlice;

use super::Export;
use super::context::RawContext;
use super::guest::{call, describe, start};
use super::table::Answer;
use crate::wire::Op;

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = Table_Ref, prefix_fields = Table_Prefix)))]
#[sabi(missing_field(option))]
pub(crate) struct Table {
    start: extern "C" fn() -> Answer,
    #[sabi(last_prefix_field)]
    describe: extern "C" fn() -> Answer,
    probe: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    snapshot: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    sync: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    list: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    stat: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    destroy: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    mount: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    unmount: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    clone_snapshot: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    diff: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    read_dir: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    read: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    lookup: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    usage: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
    reclaim: extern "C" fn(RSlice<'_, u8>, RSlice<'_, i32>, &RawContext<'_>) -> Answer,
}

impl RootModule for Table_Ref {
    abi_stable::declare_root_module_statics! {Table_Ref}
    const BASE_NAME: &'static str = super::host::MODULE;
    const NAME: &'static str = super::host::MODULE;
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

struct TableOf<E>(std::marker::PhantomData<E>);

impl<E: Export> TableOf<E> {
    const TABLE: &'static WithMetadata<Table> = &WithMetadata::new(Table {
        start: start::<E>,
        describe: describe::<E>,
        probe: call::<E, { Op::Probe as usize }>,
        snapshot: call::<E, { Op::Snapshot as usize }>,
        sync: call::<E, { Op::Sync as usize }>,
        list: call::<E, { Op::List as usize }>,
        stat: call::<E, { Op::Stat as usize }>,
        destroy: call::<E, { Op::Destroy as usize }>,
        mount: call::<E, { Op::Mount as usize }>,
        unmount: call::<E, { Op::Unmount as usize }>,
        clone_snapshot: call::<E, { Op::Clone as usize }>,
        diff: call::<E, { Op::Diff as usize }>,
        read_dir: call::<E, { Op::ReadDir as usize }>,
        read: call::<E, { Op::Read as usize }>,
        lookup: call::<E, { Op::Lookup as usize }>,
        usage: call::<E, { Op::Usage as usize }>,
        reclaim: call::<E, { Op::Reclaim as usize }>,
    });
}

extern "C" fn module<E: Export>() -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(|| Table_Ref(TableOf::<E>::TABLE.static_as_prefix()))
}

/// The header that the library of `E` would export, one operation ago.
#[must_use]
pub const fn header<E: Export>() -> LibHeader {
    // SAFETY: `module` returns a `Table_Ref`, whose layout the header carries.
    unsafe { LibHeader::from_constructor::<Table_Ref>(module::<E>, CheckTypeLayout::Yes) }
}
