//! libzfs_core: each call one ioctl, atomic over everything it names. Safe to call from many threads.

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;

use super::bindings::core as raw;
use super::load::{self, Missing};
use super::nvlist::{NvList, Value, Values};

/// The loaded library, with its connection to the kernel.
pub(crate) struct Core(raw::Core);

/// A refusal of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The error number of the whole, from errno(3) or of OpenZFS's own above 1024.
    pub(crate) errno: i32,
    /// The error number of each name, where it was told by name.
    pub(crate) each: Vec<(Vec<u8>, i32)>,
}

impl Core {
    /// The library, loaded on first use.
    pub(crate) fn get() -> Result<&'static Self, Missing> {
        static CORE: OnceLock<Core> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        if let Some(core) = CORE.get() {
            return Ok(core);
        }
        let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(core) = CORE.get() {
            return Ok(core);
        }
        let core = Self::load()?;
        // Before libzfs is loaded, which would start modprobe where the module is missing.
        // SAFETY: no arguments. It opens /dev/zfs for the calls below; `libzfs_core_fini` is never called.
        match unsafe { core.raw().libzfs_core_init() } {
            0 => Ok(CORE.get_or_init(|| core)),
            errno => Err(load::device(errno)),
        }
    }

    /// Loads the library without asking for the kernel module.
    pub(super) fn load() -> Result<Self, Missing> {
        let library = load::core()?;
        // SAFETY: the functions' types are generated from the library's headers, whose version the file name says.
        let core = unsafe { raw::Core::from_library(library) };
        core.map(Self).map_err(|error| Missing::Library { name: load::CORE.to_owned(), cause: error.to_string() })
    }

    pub(super) fn raw(&self) -> &raw::Core {
        &self.0
    }

    /// Takes snapshots, all or none of them, at one moment, with `properties` on each. Waits until they are on disk.
    pub(crate) fn snapshot(&'static self, names: &[CString], properties: &[(CString, CString)]) -> Result<(), Failure> {
        let mut names = NvList::of_names(self, names.iter().map(CString::as_c_str));
        let mut properties = NvList::of_texts(self, properties);
        let mut errors = null_mut();
        // SAFETY: two lists of ours, which the call only reads, and a place for the list of errors, which becomes ours.
        unsafe {
            let errno = self.0.lzc_snapshot(names.as_mut_ptr(), properties.as_mut_ptr(), &raw mut errors);
            answer(errno, &NvList::take(self, errors))
        }
    }

    /// Destroys snapshots; with `defer`, one that has clones or holds goes with the last of them. What is not there is success.
    pub(crate) fn destroy_snapshots(&'static self, names: &[CString], defer: bool) -> Result<(), Failure> {
        let mut names = NvList::of_names(self, names.iter().map(CString::as_c_str));
        let mut errors = null_mut();
        // SAFETY: as in `snapshot`.
        unsafe {
            let errno = self.0.lzc_destroy_snaps(names.as_mut_ptr(), u32::from(defer), &raw mut errors);
            answer(errno, &NvList::take(self, errors))
        }
    }

    /// Bytes that would come back if all snapshots of a dataset from the one to the other went. Both full names.
    pub(crate) fn space_of_range(&self, first: &CStr, last: &CStr) -> Result<u64, Failure> {
        let mut bytes = 0;
        // SAFETY: two names, and a place for the answer.
        let errno = unsafe { self.0.lzc_snaprange_space(first.as_ptr(), last.as_ptr(), &raw mut bytes) };
        answer(errno, &Values::new()).map(|()| bytes)
    }

    /// Makes a writable clone of a snapshot.
    pub(crate) fn clone_snapshot(
        &'static self,
        clone: &CStr,
        origin: &CStr,
        mut properties: NvList,
    ) -> Result<(), Failure> {
        // SAFETY: two names and a list of ours, which the call only reads.
        let errno = unsafe { self.0.lzc_clone(clone.as_ptr(), origin.as_ptr(), properties.as_mut_ptr()) };
        answer(errno, &Values::new())
    }

    /// Makes the clone the owner of its origin, and what was cloned the clone. Where both have a snapshot of one name, the failure says which.
    pub(crate) fn promote(&self, clone: &CStr) -> Result<(), Failure> {
        let mut conflicting = [0; 256];
        let size = i32::try_from(conflicting.len()).unwrap_or(0);
        // SAFETY: a name, and a buffer with its size.
        let errno = unsafe { self.0.lzc_promote(clone.as_ptr(), conflicting.as_mut_ptr(), size) };
        promoted(errno, &conflicting)
    }

    /// Destroys a filesystem that has no snapshots and is not mounted.
    pub(crate) fn destroy(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: a name.
        answer(unsafe { self.0.lzc_destroy(name.as_ptr()) }, &Values::new())
    }

    /// Renames a dataset or a snapshot within its dataset.
    pub(crate) fn rename(&self, from: &CStr, to: &CStr) -> Result<(), Failure> {
        // SAFETY: two names.
        answer(unsafe { self.0.lzc_rename(from.as_ptr(), to.as_ptr()) }, &Values::new())
    }

    /// Whether there is a dataset or snapshot of that name; a failure if it may be there and cannot be looked at.
    pub(crate) fn exists(&self, name: &CStr) -> Result<bool, Failure> {
        // SAFETY: a name.
        if unsafe { self.0.lzc_exists(name.as_ptr()) != 0 } {
            return Ok(true);
        }
        // It says no whatever the reason is; its last call, an ioctl, has left that.
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        if errno == Errno::NOENT.raw_os_error() { Ok(false) } else { Err(Failure { errno, each: Vec::new() }) }
    }
}

/// Among the errors by name, how many more there are than fit: no name, and no error. Source: `ZPROP_N_MORE_ERRORS`, which `nvlist_smush` in the module sets.
const MORE: &[u8] = b"N_MORE_ERRORS";

fn answer(errno: i32, errors: &Values) -> Result<(), Failure> {
    let number = |value: &Value| match value {
        Value::Number(number) => i32::try_from(*number).ok(),
        _ => None,
    };
    let named = errors.iter().filter(|(name, _)| name.as_slice() != MORE);
    let each: Vec<_> = named.filter_map(|(name, value)| Some((name.clone(), number(value)?))).collect();
    if errno == 0 { Ok(()) } else { Err(Failure { errno, each }) }
}

/// The answer to a promotion, with the name, behind the `@`, of a snapshot that is in the way: by that alone the module says so.
fn promoted(errno: i32, conflicting: &[c_char]) -> Result<(), Failure> {
    let mut answer = answer(errno, &Values::new());
    let name: Vec<u8> = conflicting.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
    if let Err(failure) = &mut answer
        && errno == Errno::EXIST.raw_os_error()
        && !name.is_empty()
    {
        failure.each.push((name, errno));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_in_the_way_of_a_promotion_is_named() {
        let mut name = [0; 256];
        let told = b"monday".map(|byte| c_char::from_ne_bytes([byte]));
        let exists = Errno::EXIST.raw_os_error();
        let failed = |errno, each| Err(Failure { errno, each });
        assert_eq!(promoted(exists, &name), failed(exists, Vec::new()));
        name[..6].copy_from_slice(&told);
        assert_eq!(promoted(exists, &name), failed(exists, vec![(b"monday".to_vec(), exists)]));
        assert_eq!((promoted(0, &name), promoted(1, &name)), (Ok(()), failed(1, Vec::new())));
    }

    #[test]
    fn how_many_more_errors_there_are_is_none_of_them() {
        let errors = [(MORE, 11), (b"tank@a".as_slice(), 16)];
        let errors = errors.map(|(name, number)| (name.to_vec(), Value::Number(number)));
        let failure = answer(5, &Values::from(errors)).unwrap_err();
        assert_eq!(failure, Failure { errno: 5, each: vec![(b"tank@a".to_vec(), 16)] });
    }
}
