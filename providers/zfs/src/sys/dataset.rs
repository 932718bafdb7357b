//! libzfs: what libzfs_core lacks. One connection a process, used by one thread at a time.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::raw::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bindings::{core as raw_core, zfs as raw};
use super::core::Core;
use super::load::{self, Missing};
use super::nvlist::{self, NvList, Value, Values};

/// The loaded library with its connection to the kernel, lent to one thread.
pub(crate) struct Zfs(MutexGuard<'static, Option<Session>>);

struct Session {
    lib: &'static raw::Zfs,
    core: &'static Core,
    handle: NonNull<raw::libzfs_handle_t>,
}

// SAFETY: libzfs keeps nothing per thread; the lock around the one session keeps the threads apart.
unsafe impl Send for Session {}

/// A refusal of libzfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LibError {
    /// Its own number, `EZFS_…`.
    pub(crate) code: i32,
    /// The error number that was there when it came back; zero if none was.
    pub(crate) errno: i32,
    /// What it says of it, for people.
    pub(crate) text: String,
}

/// What kind of dataset is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A filesystem.
    Filesystem,
    /// A snapshot.
    Snapshot,
}

/// Properties that are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    /// What identifies a dataset for good, also under another name.
    Guid,
    /// The transaction group that made it: the order of snapshots.
    CreateTxg,
    /// How many holds a snapshot has.
    Holds,
    /// How many clones a snapshot has.
    Clones,
    /// Whether a snapshot goes as soon as nothing holds it any more.
    DeferDestroy,
    /// What names its objects within the pool.
    ObjsetId,
    /// One if times of access are kept.
    Atime,
    /// One if they are kept only where they would be older than a change.
    Relatime,
    /// One if device files mean something.
    Devices,
    /// One if programs may be run.
    Exec,
    /// One if it is read-only.
    ReadOnly,
}

/// Properties of pools that are on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfPool {
    /// Whether it was imported so that nothing can be written to it, whatever the properties of its datasets say.
    ReadOnly,
    /// Whether what `zfs allow` gives counts.
    Delegation,
}

/// Properties that are texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    /// Where it is mounted, or is to be; `legacy` and `none` too.
    Mountpoint,
    /// Of a clone, the full name of the snapshot that it depends on.
    Origin,
    /// `available`, `unavailable`, `-` or `none`.
    KeyStatus,
}

impl Zfs {
    /// The library, loaded on first use, for this thread alone until dropped.
    pub(crate) fn get() -> Result<Self, Missing> {
        static SESSION: Mutex<Option<Session>> = Mutex::new(None);
        let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() {
            *session = Some(Session::open()?);
        }
        Ok(Self(session))
    }

    fn session(&self) -> &Session {
        // `get` has filled it, and nobody empties it.
        self.0.as_ref().unwrap_or_else(|| unreachable!("a session that was opened"))
    }

    /// Opens a dataset; none if there is none of that kind and name.
    pub(crate) fn open(&self, name: &CStr, kind: Kind) -> Result<Option<Dataset<'_>>, LibError> {
        let session = self.session();
        let kind = match kind {
            Kind::Filesystem => raw::ZFS_TYPE_FILESYSTEM,
            Kind::Snapshot => raw::ZFS_TYPE_SNAPSHOT,
        };
        // SAFETY: the session's own handle and a name; the handle that comes back is ours.
        let handle = unsafe { session.lib.zfs_open(session.handle.as_ptr(), name.as_ptr(), kind.cast_signed()) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Some(Dataset { session, handle, _of: PhantomData })),
            None => match session.error() {
                // A volume may have the name.
                error if [code::NOT_FOUND, code::BAD_TYPE].contains(&error.code) => Ok(None),
                error => Err(error),
            },
        }
    }
}

impl Zfs {
    /// Whether a property of a pool is on. None if the pool is not there.
    ///
    /// Asked anew each time: what libzfs remembers of a pool (`zfs_get_pool_handle`) is from when it was first asked.
    pub(crate) fn of_pool(&self, pool: &CStr, property: OfPool) -> Option<bool> {
        let session = self.session();
        let property = match property {
            OfPool::ReadOnly => raw::ZPOOL_PROP_READONLY,
            OfPool::Delegation => raw::ZPOOL_PROP_DELEGATION,
        };
        // SAFETY: the session's own handle and a name; the pool's handle is ours, and closed once. Where a value comes from may be null.
        unsafe {
            let pool = session.lib.zpool_open_canfail(session.handle.as_ptr(), pool.as_ptr());
            if pool.is_null() {
                return None;
            }
            let value = session.lib.zpool_get_prop_int(pool, property, null_mut());
            session.lib.zpool_close(pool);
            Some(value != 0)
        }
    }

    /// Calls `each` for the topmost dataset of every pool that is imported.
    pub(crate) fn roots(&self, mut each: impl FnMut(&Dataset<'_>)) -> Result<(), LibError> {
        let session = self.session();
        session.walk(&mut each, |lib, function, data| {
            // SAFETY: the session's own handle; `function` and `data` belong together, see `walk`.
            unsafe { lib.zfs_iter_root(session.handle.as_ptr(), function, data) }
        })
    }
}

fn functions(library: libloading::os::unix::Library) -> Result<raw::Zfs, Missing> {
    // SAFETY: the functions' types are generated from the library's headers, whose version the file name says.
    let functions = unsafe { raw::Zfs::from_library(library) };
    functions.map_err(|error| Missing::Library { name: "libzfs.so".to_owned(), cause: error.to_string() })
}

impl Session {
    fn open() -> Result<Self, Missing> {
        let core = Core::get()?;
        let lib = functions(load::zfs()?)?;
        // SAFETY: no arguments; `libzfs_fini` is never called.
        let handle = unsafe { lib.libzfs_init() };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        let handle = NonNull::new(handle).ok_or(Missing::Device { errno })?;
        // It lives as long as the process: there is one session.
        Ok(Self { lib: Box::leak(Box::new(lib)), core, handle })
    }

    fn error(&self) -> LibError {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        // SAFETY: the session's own handle; the text is in its memory, and copied.
        unsafe {
            let code = self.lib.libzfs_errno(self.handle.as_ptr());
            let text = self.lib.libzfs_error_description(self.handle.as_ptr());
            let text = if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
            LibError { code, errno, text }
        }
    }

    /// Has `call` go through datasets with the function and the data that it is given.
    fn walk(
        &self,
        each: &mut dyn FnMut(&Dataset<'_>),
        call: impl FnOnce(&raw::Zfs, raw::zfs_iter_f, *mut c_void) -> c_int,
    ) -> Result<(), LibError> {
        let mut walk = Walk { session: self, each, panic: None };
        let status = call(self.lib, Some(step), (&raw mut walk).cast());
        if let Some(panic) = walk.panic {
            resume_unwind(panic);
        }
        self.check(status)
    }

    fn check(&self, status: c_int) -> Result<(), LibError> {
        if status == 0 { Ok(()) } else { Err(self.error()) }
    }
}

/// An open dataset, closed when dropped.
pub(crate) struct Dataset<'a> {
    session: &'a Session,
    handle: NonNull<raw::zfs_handle_t>,
    _of: PhantomData<&'a Zfs>,
}

impl Dataset<'_> {
    /// Its full name.
    pub(crate) fn name(&self) -> CString {
        // SAFETY: an open dataset's name ends with NUL and lives as long as the handle; it is copied.
        unsafe { CStr::from_ptr(self.session.lib.zfs_get_name(self.handle.as_ptr())) }.to_owned()
    }

    /// A property that is a number.
    pub(crate) fn number(&self, property: Number) -> u64 {
        let property = match property {
            Number::Guid => raw::ZFS_PROP_GUID,
            Number::CreateTxg => raw::ZFS_PROP_CREATETXG,
            Number::Holds => raw::ZFS_PROP_USERREFS,
            Number::Clones => raw::ZFS_PROP_NUMCLONES,
            Number::DeferDestroy => raw::ZFS_PROP_DEFER_DESTROY,
            Number::ObjsetId => raw::ZFS_PROP_OBJSETID,
            Number::Atime => raw::ZFS_PROP_ATIME,
            Number::Relatime => raw::ZFS_PROP_RELATIME,
            Number::Devices => raw::ZFS_PROP_DEVICES,
            Number::Exec => raw::ZFS_PROP_EXEC,
            Number::ReadOnly => raw::ZFS_PROP_READONLY,
        };
        // SAFETY: an open dataset and a property that is a number.
        unsafe { self.session.lib.zfs_prop_get_int(self.handle.as_ptr(), property) }
    }

    /// Bytes that a snapshot has and an older one of the same dataset has not: what was written in between and is still there, with all that
    /// ZFS itself notes of it. None if ZFS does not say.
    pub(crate) fn written_since(&self, older: &CStr) -> Option<u64> {
        let property = CString::new([b"written@", older.to_bytes()].concat()).ok()?;
        let mut bytes = 0;
        // SAFETY: an open dataset, a text, and a place for the answer.
        let status = unsafe {
            self.session.lib.zfs_prop_get_written_int(self.handle.as_ptr(), property.as_ptr(), &raw mut bytes)
        };
        (status == 0).then_some(bytes)
    }

    /// A property that is a text; none where the dataset has none.
    pub(crate) fn text(&self, property: Text) -> Option<Vec<u8>> {
        let property = match property {
            Text::Mountpoint => raw::ZFS_PROP_MOUNTPOINT,
            Text::Origin => raw::ZFS_PROP_ORIGIN,
            Text::KeyStatus => raw::ZFS_PROP_KEYSTATUS,
        };
        let mut text = [0; 8192];
        // SAFETY: an open dataset, and a buffer with its size; the other places may be null.
        let status = unsafe {
            self.session.lib.zfs_prop_get(
                self.handle.as_ptr(),
                property,
                text.as_mut_ptr(),
                text.len(),
                null_mut(),
                null_mut(),
                0,
                1,
            )
        };
        // SAFETY: on success the buffer holds a text that ends with NUL, and it was full of them before.
        (status == 0).then(|| unsafe { CStr::from_ptr(text.as_ptr()) }.to_bytes().to_vec())
    }

    /// The user properties (names that contain a colon) that were set on it, or received with it; none that it inherits.
    pub(crate) fn user_properties(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        // SAFETY: an open dataset; the list belongs to its handle and is copied.
        let properties = unsafe {
            let list = self.session.lib.zfs_get_user_props(self.handle.as_ptr());
            if list.is_null() {
                Values::new()
            } else {
                nvlist::read(self.session.core, list.cast::<raw_core::nvlist_t>())
            }
        };
        own(&properties, self.name().to_bytes())
    }

    /// The names of a snapshot's clones.
    pub(crate) fn clones(&self) -> Vec<Vec<u8>> {
        // SAFETY: an open snapshot; the list belongs to its handle and is copied.
        let clones = unsafe {
            let list = self.session.lib.zfs_get_clones_nvl(self.handle.as_ptr());
            if list.is_null() {
                Values::new()
            } else {
                nvlist::read(self.session.core, list.cast::<raw_core::nvlist_t>())
            }
        };
        clones.into_keys().collect()
    }

    /// Sets a property.
    pub(crate) fn set(&self, name: &CStr, value: &CStr) -> Result<(), LibError> {
        // SAFETY: an open dataset and two texts.
        let status = unsafe { self.session.lib.zfs_prop_set(self.handle.as_ptr(), name.as_ptr(), value.as_ptr()) };
        self.session.check(status)
    }

    /// The permissions that were delegated here and above, by the dataset that bears them.
    pub(crate) fn permissions(&self) -> Result<Values, LibError> {
        let mut list = null_mut();
        // SAFETY: an open dataset and a place for a list, which becomes ours.
        unsafe {
            let status = self.session.lib.zfs_get_fsacl(self.handle.as_ptr(), &raw mut list);
            self.session.check(status)?;
            Ok(NvList::take(self.session.core, list.cast::<raw_core::nvlist_t>()))
        }
    }

    /// Calls `each` for every snapshot, of which nothing but the name is known. With more, this would end at the first one that is damaged.
    pub(crate) fn snapshots(&self, mut each: impl FnMut(&Dataset<'_>)) -> Result<(), LibError> {
        self.session.walk(&mut each, |lib, function, data| {
            // SAFETY: an open dataset; `function` and `data` belong together, see `walk`.
            unsafe { lib.zfs_iter_snapshots(self.handle.as_ptr(), 1, function, data, 0, 0) }
        })
    }

    /// Calls `each` for every filesystem right below.
    pub(crate) fn children(&self, mut each: impl FnMut(&Dataset<'_>)) -> Result<(), LibError> {
        self.session.walk(&mut each, |lib, function, data| {
            // SAFETY: an open dataset; `function` and `data` belong together, see `walk`.
            unsafe { lib.zfs_iter_filesystems(self.handle.as_ptr(), function, data) }
        })
    }
}

/// What a property that came with a received dataset has for its source. Source: `ZPROP_SOURCE_VAL_RECVD`.
const RECEIVED: &[u8] = b"$recvd";

/// Of the properties of what is called `name`, those that are its own: the others have the name of what they come from for a source.
fn own(properties: &Values, name: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let value = |given: &Value| {
        let text = |of: &[u8]| given.list()?.get(of)?.text();
        let source = text(b"source")?;
        (source == name || source == RECEIVED).then(|| text(b"value").map(<[u8]>::to_vec)).flatten()
    };
    properties.iter().filter_map(|(name, given)| Some((name.clone(), value(given)?))).collect()
}

impl Drop for Dataset<'_> {
    fn drop(&mut self) {
        // SAFETY: a handle of ours that nobody uses any more.
        unsafe { self.session.lib.zfs_close(self.handle.as_ptr()) }
    }
}

struct Walk<'a> {
    session: &'a Session,
    each: &'a mut dyn FnMut(&Dataset<'_>),
    panic: Option<Box<dyn Any + Send>>,
}

/// Called by libzfs for each dataset, whose handle becomes ours. A panic does not travel through C: it ends the walk.
unsafe extern "C" fn step(handle: *mut raw::zfs_handle_t, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `Walk` of the `walk` that is running, which nobody else touches meanwhile.
    let walk = unsafe { &mut *data.cast::<Walk<'_>>() };
    let Some(handle) = NonNull::new(handle) else { return 0 };
    let dataset = Dataset { session: walk.session, handle, _of: PhantomData };
    match catch_unwind(AssertUnwindSafe(|| (walk.each)(&dataset))) {
        Ok(()) => 0,
        Err(panic) => {
            walk.panic = Some(panic);
            1
        }
    }
}

/// The numbers of [`LibError::code`] that mean something to a caller. The same in all versions that are loaded.
pub(crate) mod code {
    use super::raw;

    pub(crate) const PERMISSION: i32 = raw::EZFS_PERM.cast_signed();
    pub(crate) const BUSY: i32 = raw::EZFS_BUSY.cast_signed();
    pub(crate) const NO_SPACE: i32 = raw::EZFS_NOSPC.cast_signed();
    pub(crate) const IO: i32 = raw::EZFS_IO.cast_signed();
    pub(crate) const POOL_UNAVAILABLE: i32 = raw::EZFS_POOLUNAVAIL.cast_signed();
    pub(crate) const EXISTS: i32 = raw::EZFS_EXISTS.cast_signed();
    pub(crate) const NOT_FOUND: i32 = raw::EZFS_NOENT.cast_signed();
    pub(crate) const BAD_TYPE: i32 = raw::EZFS_BADTYPE.cast_signed();
    pub(crate) const NO_MEMORY: i32 = raw::EZFS_NOMEM.cast_signed();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inherited_is_not_ones_own() {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let given = |source: &str| {
            Value::List(Values::from([(b"value".to_vec(), text("x")), (b"source".to_vec(), text(source))]))
        };
        let properties = Values::from([
            (b"a:own".to_vec(), given("tank/w@s")),
            (b"a:received".to_vec(), given("$recvd")),
            (b"a:above".to_vec(), given("tank")),
            (b"a:beside".to_vec(), given("tank/w")),
            (b"a:odd".to_vec(), text("x")),
        ]);
        let own = own(&properties, b"tank/w@s");
        assert_eq!(own.keys().map(Vec::as_slice).collect::<Vec<_>>(), [&b"a:own"[..], b"a:received"]);
    }
}
