//! Where plugins are looked for, and which files count.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use ah_plugin_api::ProviderName;
use ah_plugin_api::abi::ABI_MAJOR;

/// Where to look. The order is that of the fields; of two files for one provider, the first is used.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Folders, or single files, that the user named.
    pub explicit: Vec<PathBuf>,
    /// The folder of the running program, with all symlinks resolved: `../lib/ah/providers/N` (and `lib64`, and the
    /// multiarch folder) from there, and the folder itself if it is a build folder of cargo's.
    pub exe_dir: Option<PathBuf>,
    /// The system's library folders.
    pub system: bool,
}

/// Why a place was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The user named it.
    Explicit,
    /// It belongs to the running program's installation.
    BesideProgram,
    /// The running program lies in a build folder.
    Build,
    /// It belongs to the system.
    System,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Explicit => "explicit",
            Self::BesideProgram => "beside-program",
            Self::Build => "build",
            Self::System => "system",
        })
    }
}

/// A place to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
}

impl Search {
    /// The folders and files that are looked at, in order, whether they are there or not.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.places().into_iter().map(|place| place.path).collect()
    }

    /// All places in order, each once, whether they are there or not.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        let mut add = |path: PathBuf, origin| {
            if !places.iter().any(|place| place.path == path) {
                places.push(Place { path, origin });
            }
        };
        for path in &self.explicit {
            add(path.clone(), Origin::Explicit);
        }
        if let Some(exe) = &self.exe_dir {
            for libdir in exe.parent().into_iter().flat_map(|prefix| LIBDIRS.map(|libdir| prefix.join(libdir))) {
                add(below(&libdir), Origin::BesideProgram);
            }
            if let Some(build) = build_folder(exe) {
                add(build.to_owned(), Origin::Build);
            }
        }
        if self.system {
            for libdir in system_libdirs() {
                add(below(&libdir), Origin::System);
            }
        }
        places
    }
}

fn below(libdir: &Path) -> PathBuf {
    libdir.join("ah/providers").join(ABI_MAJOR.to_string())
}

/// The folder itself if cargo builds into it, or the one above for a test program in `deps`.
fn build_folder(exe: &Path) -> Option<&Path> {
    let folder = if exe.file_name() == Some(OsStr::new("deps")) { exe.parent()? } else { exe };
    // Cargo leaves its mark at the top of the target folder: one up, or two with `--target`.
    let marked = |dir: &Path| dir.join(".rustc_info.json").is_file();
    folder.ancestors().skip(1).take(2).any(marked).then_some(folder)
}

/// Where distributions keep libraries, below `/usr` or another prefix.
const LIBDIRS: [&str; 3] = ["lib", "lib64", MULTIARCH];

const MULTIARCH: &str = if cfg!(target_arch = "x86_64") {
    "lib/x86_64-linux-gnu"
} else if cfg!(target_arch = "aarch64") {
    "lib/aarch64-linux-gnu"
} else if cfg!(target_arch = "riscv64") {
    "lib/riscv64-linux-gnu"
} else if cfg!(target_arch = "powerpc64") {
    "lib/powerpc64le-linux-gnu"
} else if cfg!(target_arch = "s390x") {
    "lib/s390x-linux-gnu"
} else {
    "lib"
};

/// What the packager compiled in (`AH_LIBDIR` in the environment of the build), then the usual places.
fn system_libdirs() -> impl Iterator<Item = PathBuf> {
    // A relative one would be a folder of whatever directory `ah` is called in.
    let compiled_in = option_env!("AH_LIBDIR").map(PathBuf::from).filter(|libdir| libdir.is_absolute());
    compiled_in.into_iter().chain(LIBDIRS.map(|libdir| Path::new("/usr").join(libdir)))
}

/// The provider that a file name promises: `libah_provider_<name>.so`.
pub(crate) fn name_of(file: &OsStr) -> Option<ProviderName> {
    let name = file.to_str()?.strip_prefix("libah_provider_")?.strip_suffix(".so")?;
    ProviderName::new(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_providers_count() {
        assert_eq!(name_of(OsStr::new("libah_provider_git.so")).unwrap().as_str(), "git");
        for other in ["libah_provider_.so", "libah_provider_Git.so", "libah_provider_git.so.1", "libgit.so", "ah.so"] {
            assert_eq!(name_of(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn the_user_comes_first_then_the_installation_then_the_system() {
        let search = Search {
            explicit: vec!["/a".into(), "/usr/lib/ah/providers/1".into(), "/a".into()],
            exe_dir: Some("/usr/bin".into()),
            system: true,
        };
        let places = search.places();
        let origins: Vec<_> = places.iter().map(|place| place.origin).collect();
        assert!(origins.is_sorted());
        assert_eq!(places[0].path, Path::new("/a"));
        // Beside /usr/bin is /usr/lib, which the user named already; no place comes twice.
        assert_eq!(places.iter().filter(|place| place.path.ends_with("lib/ah/providers/1")).count(), 1);
        assert!(places.iter().any(|place| place.path == Path::new("/usr/lib64/ah/providers/1")));
    }

    #[test]
    fn a_build_folder_is_known_by_cargos_mark() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("debug/deps");
        std::fs::create_dir_all(&exe).unwrap();
        assert_eq!(build_folder(&exe), None);
        std::fs::write(dir.path().join(".rustc_info.json"), "{}").unwrap();
        assert_eq!(build_folder(&exe), Some(exe.parent().unwrap()));
        assert_eq!(build_folder(exe.parent().unwrap()), Some(exe.parent().unwrap()));
    }
}
