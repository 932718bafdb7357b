//! Finding the libraries: which file names, which versions, and what is missing where one cannot be had.

use std::os::raw::c_int;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Where the kernel module answers.
const DEVICE: &str = "/dev/zfs";

/// libzfs_core and what it brings along. Its third version is that of all OpenZFS 2.x.
pub(super) const CORE: &str = "libzfs_core.so.3";

/// The versions of libzfs whose headers were compared with the bindings: 4 is OpenZFS 2.1 and 2.2, 6 is 2.3.
const ZFS: [u32; 2] = [6, 4];

/// Where the kernel module says its version, `2.1.11-1` say.
const VERSION: &str = "/sys/module/zfs/version";

/// Versions that may be installed, for a message that says more than "not there".
const OTHERS: std::ops::RangeInclusive<u32> = 1..=12;

/// Why ZFS cannot be talked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    /// A library is not installed, or does not load.
    #[error("the library {name} cannot be loaded")]
    Library {
        /// The file name that was looked for.
        name: String,
        /// What the loader said.
        cause: String,
    },
    /// A library is there, but of a version that this program was not made for.
    #[error("{found} is of a version that this provider does not know")]
    Version {
        /// The file that is there.
        found: String,
    },
    /// The kernel module is not loaded.
    #[error("the ZFS kernel module is not loaded: there is no {DEVICE}")]
    Module,
    /// The kernel module is there, but does not let this user in, or does not answer.
    #[error("{DEVICE} cannot be opened: {}", std::io::Error::from_raw_os_error(*.errno))]
    Device {
        /// The error number.
        errno: i32,
    },
}

impl Missing {
    /// What would help.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Library { .. } => {
                "install OpenZFS's libraries: on Debian the package zfsutils-linux, of the component contrib"
            }
            Self::Version { .. } => "install OpenZFS 2.1, 2.2 or 2.3, or a newer version of ah",
            Self::Module => "load it: modprobe zfs",
            Self::Device { .. } => "make it accessible: chmod 666 /dev/zfs, as OpenZFS's own udev rule does",
        }
    }
}

/// Why the kernel module does not answer, by the error number of opening its device.
pub(super) fn device(errno: i32) -> Missing {
    use rustix::io::Errno;
    if [Errno::NOENT, Errno::NXIO, Errno::NODEV].iter().any(|none| none.raw_os_error() == errno) {
        Missing::Module
    } else {
        Missing::Device { errno }
    }
}

/// Loads libzfs_core.
pub(super) fn core() -> Result<Library, Missing> {
    open(CORE).map_err(|cause| Missing::Library { name: CORE.to_owned(), cause })
}

/// The known versions, first the one that was made for the kernel module: several may be installed.
fn versions(module: &str) -> [u32; 2] {
    let mut parts = module.trim().splitn(3, '.').map_while(|part| part.parse::<u32>().ok());
    let [newer, older] = ZFS;
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) if (major, minor) < (2, 3) => [older, newer],
        _ => ZFS,
    }
}

/// Loads libzfs.
pub(super) fn zfs() -> Result<Library, Missing> {
    let name = |version: u32| format!("libzfs.so.{version}");
    let mut causes = Vec::new();
    for version in versions(&std::fs::read_to_string(VERSION).unwrap_or_default()) {
        match open(&name(version)) {
            Ok(library) => return Ok(library),
            Err(cause) => causes.push(cause),
        }
    }
    // Not loaded for it: looked at where the loader said that it found one.
    let other = OTHERS.filter(|version| !ZFS.contains(version)).map(name).find(|name| is_installed(name));
    Err(match other {
        Some(found) => Missing::Version { found },
        None => Missing::Library { name: name(ZFS[1]), cause: causes.pop().unwrap_or_default() },
    })
}

const FLAGS: c_int = RTLD_NOW | RTLD_LOCAL;

fn open(name: &str) -> Result<Library, String> {
    // SAFETY: these libraries' initialisers do nothing but set up their own memory; they are looked for where the system's loader
    // looks, and never by a path that a caller gives.
    unsafe { Library::open(Some(name), FLAGS) }.map_err(|error| error.to_string())
}

/// Whether a library lies in one of the usual folders.
fn is_installed(name: &str) -> bool {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["/lib".to_owned(), "/usr/lib".into(), "/lib64".into(), "/usr/lib64".into(), "/usr/local/lib".into()];
    let multiarch = [format!("/lib/{triplet}"), format!("/usr/lib/{triplet}")];
    folders.iter().chain(&multiarch).any(|folder| Path::new(folder).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::{Missing, device, versions};

    #[test]
    fn the_library_is_the_modules() {
        assert_eq!((versions("2.1.11-1\n"), versions("2.2.7")), ([4, 6], [4, 6]));
        assert_eq!((versions("2.3.2-2~bpo12+2\n"), versions("3.0.0"), versions("")), ([6, 4], [6, 4], [6, 4]));
    }

    #[test]
    fn a_device_that_is_not_there_is_a_module_that_is_not() {
        assert_eq!(device(2), Missing::Module);
        assert_eq!(device(13), Missing::Device { errno: 13 });
    }

    #[test]
    fn what_is_missing_comes_with_what_helps() {
        for missing in [
            Missing::Library { name: super::CORE.into(), cause: "no".into() },
            Missing::Version { found: "libzfs.so.2".into() },
            Missing::Module,
            Missing::Device { errno: 13 },
        ] {
            assert!(!missing.to_string().is_empty() && !missing.remedy().is_empty());
        }
        assert!(Missing::Device { errno: 13 }.to_string().contains("denied"));
    }
}
