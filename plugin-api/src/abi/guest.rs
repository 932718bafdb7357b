//! The plugin's side: a provider, once made, behind the entries of the table.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Mutex;

use abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleResult};
use abi_stable::prefix_type::WithMetadata;
use abi_stable::std_types::{RResult, RSlice};
use serde::{Deserialize, Serialize};

use super::context::RawContext;
use super::panics;
use super::table::{Answer, Table, Table_Ref};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Provider;
use crate::wire::{self, Op};

/// Makes a plugin of a provider: `export_provider!(MyProvider::new())`, once in a `cdylib` crate that has nothing else in it.
///
/// The expression gives the provider, or a `Result` of it and [`crate::Error`]. It runs once, when the library is loaded; if it
/// fails or panics, the host reports that and goes on without the library. It must be quick, and like every operation it must not
/// change the process (cwd, umask, environment, signal handlers).
#[macro_export]
macro_rules! export_provider {
    ($constructor:expr) => {
        $crate::export_provider!(@with $crate::abi::exported::header, $constructor);
    };
    // With another edition of the table; for tests of the ABI itself.
    (@with $header:path, $constructor:expr) => {
        #[cfg(panic = "abort")]
        compile_error!("a plugin must be built with `panic = \"unwind\"`, or its panics end the program that uses it");

        const _: () = {
            struct Exported;

            impl $crate::abi::Export for Exported {
                fn slot() -> &'static $crate::abi::Slot {
                    static SLOT: $crate::abi::Slot = $crate::abi::Slot::new();
                    &SLOT
                }

                fn construct() -> $crate::Result<Box<dyn $crate::Provider>> {
                    $crate::abi::IntoProvider::into_provider($constructor)
                }
            }

            // SAFETY: the name is the ABI library's own, and a `cdylib` with one provider exports it once.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static HEADER: $crate::abi::exported::LibHeader = {
                use $header as header;
                header::<Exported>()
            };
        };
    };
}

/// A provider that a library exports; implemented by [`crate::export_provider!`].
pub trait Export: 'static {
    /// Where the provider is kept.
    fn slot() -> &'static Slot;

    /// Makes the provider.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn construct() -> Result<Box<dyn Provider>>;
}

/// What the expression of [`crate::export_provider!`] may give.
pub trait IntoProvider {
    /// The provider.
    ///
    /// # Errors
    /// Those of the expression.
    fn into_provider(self) -> Result<Box<dyn Provider>>;
}

impl<P: Provider + 'static> IntoProvider for P {
    fn into_provider(self) -> Result<Box<dyn Provider>> {
        Ok(Box::new(self))
    }
}

impl<P: Provider + 'static> IntoProvider for Result<P> {
    fn into_provider(self) -> Result<Box<dyn Provider>> {
        self.map(|provider| Box::new(provider) as Box<dyn Provider>)
    }
}

/// Holds a library's provider from `start` on, for the rest of the process: libraries are never unloaded.
#[derive(Default)]
pub struct Slot(Mutex<Option<&'static dyn Provider>>);

impl Slot {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<&'static dyn Provider>> {
        // A constructor that panicked leaves the slot empty, which is as good a state as any.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn get(&self) -> Result<&'static dyn Provider> {
        let provider = *self.lock();
        provider.ok_or_else(|| Error::new(ErrorKind::FailedPrecondition, "this plugin was not started"))
    }
}

/// Why `start` failed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartError {
    pub(crate) panicked: bool,
    pub(crate) error: Error,
}

/// Makes the provider, unless that has been done: a library that is opened twice has one provider.
pub(crate) extern "C" fn start<E: Export>() -> Answer {
    let mut slot = E::slot().lock();
    if slot.is_some() {
        return RResult::ROk(Vec::new().into());
    }
    // The inner result is the constructor's, the outer one tells a panic from an error.
    let (panicked, error) = match panics::guard(|| Ok(E::construct())) {
        Ok(Ok(provider)) => {
            *slot = Some(Box::leak(provider));
            return RResult::ROk(Vec::new().into());
        }
        Ok(Err(error)) => (false, error),
        Err(error) => (true, error),
    };
    RResult::RErr(wire::encode(&StartError { panicked, error }).unwrap_or_default().into())
}

/// Answers what the provider says of itself.
pub(crate) extern "C" fn describe<E: Export>() -> Answer {
    answer(panics::guard(|| wire::encode(&E::slot().get()?.describe())))
}

/// Answers one operation, number `OP` of [`Op::ALL`].
pub(crate) extern "C" fn call<E: Export, const OP: usize>(
    request: RSlice<'_, u8>,
    fds: RSlice<'_, i32>,
    cx: &RawContext<'_>,
) -> Answer {
    answer(panics::guard(|| {
        let provider = E::slot().get()?;
        let fds = fds.iter().map(|&fd| duplicate(fd)).collect::<Result<Vec<_>>>()?;
        wire::serve(provider, Op::ALL[OP], request.as_slice(), fds, &Context::new(cx))
    }))
}

fn duplicate(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a descriptor is not one"));
    }
    // SAFETY: the host lends open descriptors for the length of the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().map_err(|e| Error::from_io("cannot duplicate a descriptor", &e))
}

fn answer(result: Result<Vec<u8>>) -> Answer {
    match result {
        Ok(bytes) => RResult::ROk(bytes.into()),
        // An error that cannot be encoded is an empty one; the host says so.
        Err(error) => RResult::RErr(wire::encode(&error).unwrap_or_default().into()),
    }
}

struct TableOf<E>(std::marker::PhantomData<E>);

impl<E: Export> TableOf<E> {
    const TABLE: &'static WithMetadata<Table> = &WithMetadata::new(Table::of::<E>());
}

/// The table of `E`, as the host gets it.
pub(crate) fn table<E: Export>() -> Table_Ref {
    Table_Ref(TableOf::<E>::TABLE.static_as_prefix())
}

extern "C" fn module<E: Export>() -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(table::<E>)
}

/// The header that the library of `E` exports.
#[must_use]
pub const fn header<E: Export>() -> LibHeader {
    // SAFETY: `module` returns a `Table_Ref`, whose layout the header carries.
    unsafe { LibHeader::from_constructor::<Table_Ref>(module::<E>, CheckTypeLayout::Yes) }
}
