//! What is called back while an operation runs: progress, cancellation, log. Both sides of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::std_types::{RSlice, RStr};

use crate::context::{Context, LogLevel, Observer, Progress};
use crate::wire;

/// The host's functions. Append only, like the table.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = Callbacks_Ref, prefix_fields = Callbacks_Prefix)))]
#[sabi(missing_field(option))]
pub(crate) struct Callbacks {
    /// Takes a [`Progress`] as CBOR.
    pub(crate) progress: unsafe extern "C" fn(*const (), RSlice<'_, u8>),
    /// Whether the operation shall stop.
    pub(crate) cancelled: unsafe extern "C" fn(*const ()) -> bool,
    /// Takes a level, as text, and a message.
    #[sabi(last_prefix_field)]
    pub(crate) log: unsafe extern "C" fn(*const (), RStr<'_>, RStr<'_>),
}

/// An [`Observer`] of the host as the guest sees it, for the length of one call.
#[repr(C)]
#[derive(StableAbi)]
pub(crate) struct RawContext<'a> {
    /// First argument of every callback; points to a `&dyn Observer` of the host.
    data: *const (),
    callbacks: Callbacks_Ref,
    _lives: std::marker::PhantomData<&'a ()>,
}

// SAFETY: `data` points to a `&dyn Observer`, and observers are `Sync`; `callbacks` points to a static table of functions.
unsafe impl Sync for RawContext<'_> {}
// SAFETY: as above.
unsafe impl Send for RawContext<'_> {}

/// Runs `call` with the raw form of `cx`.
pub(crate) fn with_raw<T>(cx: &Context<'_>, call: impl FnOnce(&RawContext<'_>) -> T) -> T {
    let observer: &dyn Observer = cx.observer();
    let data = (&raw const observer).cast::<()>();
    call(&RawContext { data, callbacks: CALLBACKS, _lives: std::marker::PhantomData })
}

/// The observer behind a raw context's pointer.
///
/// # Safety
/// `data` must come from [`with_raw`] of the same build, and its call must still be running.
unsafe fn observer<'a>(data: *const ()) -> &'a dyn Observer {
    // SAFETY: promised by the caller; `with_raw` keeps the reference alive on its stack during the call.
    unsafe { *data.cast::<&'a dyn Observer>() }
}

// A panic of the host's observer must not unwind into a guest that was compiled by somebody else.
unsafe extern "C" fn progress(data: *const (), message: RSlice<'_, u8>) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(progress) = wire::decode::<Progress>(message.as_slice()) {
            // SAFETY: the guest calls with the pointer it was given, during the call it was given it for.
            unsafe { observer(data) }.progress(&progress);
        }
    }));
}

unsafe extern "C" fn cancelled(data: *const ()) -> bool {
    // SAFETY: as in `progress`.
    catch_unwind(AssertUnwindSafe(|| unsafe { observer(data) }.cancelled())).unwrap_or(true)
}

unsafe extern "C" fn log(data: *const (), level: RStr<'_>, message: RStr<'_>) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as in `progress`.
        unsafe { observer(data) }.log(LogLevel::from_text(level.as_str()), message.as_str());
    }));
}

const CALLBACKS: Callbacks_Ref = {
    const TABLE: &WithMetadata<Callbacks> = &WithMetadata::new(Callbacks { progress, cancelled, log });
    Callbacks_Ref(TABLE.static_as_prefix())
};

/// The guest's observer: passes everything on to the host.
impl Observer for RawContext<'_> {
    fn progress(&self, progress: &Progress) {
        if let Ok(message) = wire::encode(progress) {
            // SAFETY: `data` belongs to `callbacks`, and a `RawContext` does not outlive its call.
            unsafe { self.callbacks.progress()(self.data, message.as_slice().into()) };
        }
    }

    fn cancelled(&self) -> bool {
        // SAFETY: as in `progress`.
        unsafe { self.callbacks.cancelled()(self.data) }
    }

    fn log(&self, level: LogLevel, message: &str) {
        // SAFETY: as in `progress`.
        unsafe { self.callbacks.log()(self.data, level.as_str().into(), message.into()) };
    }
}
