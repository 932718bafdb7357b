//! What a run brings into the guest: our programs in `/ah/bin` with the libraries that the guest lacks, providers in `/ah/providers`,
//! files in `/ah/files`, and the command.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::abi::ABI_MAJOR;
use anyhow::{Context as _, Result, bail, ensure};

use crate::cpio::Archive;

/// Where `/ah/bin/ah` looks for providers, as if it were installed.
fn providers() -> String {
    format!("ah/lib/ah/providers/{ABI_MAJOR}")
}

/// A guest that `scripts/vm-guest` made.
#[derive(Debug, Clone)]
pub struct Guest {
    folder: PathBuf,
}

impl Guest {
    /// The guest with that series of ZFS, of the checkout whose target folder is given; an error says how to make it.
    pub fn find(target: &Path, series: &str) -> Result<Self> {
        let folder = target.join("vm").join(format!("zfs-{series}"));
        ensure!(folder.join("recipe").exists(), "the guest is not built: run scripts/vm-guest {series}");
        Ok(Self { folder })
    }

    /// The kernel's image.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    /// Which kernel and which ZFS.
    pub fn versions(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.join("versions"))?.trim().to_owned())
    }

    fn libraries(&self) -> Result<BTreeSet<String>> {
        Ok(fs::read_to_string(self.folder.join("libraries"))?.lines().map(str::to_owned).collect())
    }
}

/// What a run brings along.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// Programs and libraries of ours, for `/ah/bin`.
    pub programs: Vec<PathBuf>,
    /// Files and folders, for `/ah/files`.
    pub files: Vec<PathBuf>,
    /// What bash runs, in `/ah/files`, as root.
    pub command: String,
    /// Modules to load.
    pub modules: Vec<String>,
    /// A shell on the serial console in place of the command.
    pub shell: bool,
}

impl Payload {
    /// The file that the kernel unpacks as its root: the guest's, and behind it ours.
    pub fn pack(&self, guest: &Guest, into: &Path) -> Result<()> {
        let mut out = File::create(into)?;
        io::copy(&mut File::open(guest.folder.join("base.cpio"))?, &mut out)?;
        // Not all of what cpio writes ends where the next archive may begin.
        let start = out.stream_position()?.next_multiple_of(512);
        out.seek(SeekFrom::Start(start))?;
        let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, out), start);
        archive.directory("ah")?;
        let providers = providers();
        for folder in ["ah/bin", "ah/lib", "ah/lib/ah", "ah/lib/ah/providers", &providers, "ah/files"] {
            archive.directory(folder)?;
        }
        archive.symlink("ah/providers", &format!("/{providers}"))?;
        archive.file("ah/settings", 0o644, self.settings().as_bytes())?;
        archive.file("ah/command", 0o755, self.command.as_bytes())?;
        let mut there = guest.libraries()?;
        for program in &self.programs {
            let stripped = strip(program, &guest.folder.with_file_name("stripped"))?;
            let file = name(program)?;
            let place = if file.starts_with("libah_provider_") { providers.as_str() } else { "ah/bin" };
            archive.file(&format!("{place}/{file}"), 0o755, &fs::read(stripped)?)?;
            for library in libraries(program)? {
                let file = name(&library)?.to_owned();
                if there.insert(file.clone()) {
                    archive.file(&format!("usr/lib/x86_64-linux-gnu/{file}"), 0o755, &fs::read(&library)?)?;
                }
            }
        }
        for file in &self.files {
            add(&mut archive, file, &format!("ah/files/{}", name(file)?))?;
        }
        archive.finish()?;
        Ok(())
    }

    fn settings(&self) -> String {
        format!("modules='{}'\nshell={}\n", self.modules.join(" "), if self.shell { "yes" } else { "" })
    }
}

fn add(archive: &mut Archive<impl io::Write>, from: &Path, to: &str) -> Result<()> {
    let meta = fs::metadata(from).with_context(|| from.display().to_string())?;
    if meta.is_dir() {
        archive.directory(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?.path();
            add(archive, &entry, &format!("{to}/{}", name(&entry)?))?;
        }
    } else {
        archive.file(to, meta.permissions().mode(), &fs::read(from).with_context(|| from.display().to_string())?)?;
    }
    Ok(())
}

fn name(path: &Path) -> Result<&str> {
    path.file_name().and_then(OsStr::to_str).with_context(|| format!("{} has no name to go by", path.display()))
}

/// The program without what only a debugger reads: most of its size. Kept until the program changes.
fn strip(program: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = fs::canonicalize(program).with_context(|| program.display().to_string())?;
    let kept = folder.join(path.to_string_lossy().replace('/', "%"));
    let age = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified());
    if age(&kept).is_ok_and(|kept| age(&path).is_ok_and(|built| kept > built)) {
        return Ok(kept);
    }
    // Several runs may do this at once.
    let new = folder.join(format!("{}.{}", name(&kept)?, std::process::id()));
    let status = Command::new("strip").arg("--strip-debug").arg("-o").arg(&new).arg(&path).status();
    if !status.is_ok_and(|status| status.success()) {
        return Ok(path);
    }
    fs::rename(&new, &kept)?;
    Ok(kept)
}

/// The libraries that the dynamic linker would load for a program, as files of this machine.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = Vec::new();
    for line in text.lines() {
        if line.contains("not found") {
            bail!("{}: {}", program.display(), line.trim());
        }
        found.extend(line.split_once("=> ").and_then(|(_, rest)| rest.split(' ').next()).map(PathBuf::from));
    }
    Ok(found)
}
