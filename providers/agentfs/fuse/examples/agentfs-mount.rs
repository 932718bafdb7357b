//! Mounts a workspace by hand: `agentfs-mount STORE LOWER AT [LABEL]`. Makes the store if there is none, and the branch of that label
//! (`work`) if there is none, from the lower directory as it is now. Serves until it is unmounted. For trying things out, and for tests
//! that kill it.

#[cfg(target_os = "linux")]
fn main() {
    if let Err(error) = run() {
        eprintln!("agentfs-mount: {error}");
        std::process::exit(1);
    }
}

#[cfg(target_os = "linux")]
fn run() -> Result<(), Box<dyn std::error::Error>> {
    use ah_agentfs::{Error, Options, Workspace};
    use ah_agentfs_fuse::Mount;
    use std::path::Path;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, lower, at, label @ ..] = &arguments[..] else {
        return Err("usage: agentfs-mount STORE LOWER AT [LABEL]".into());
    };
    let (store, lower) = (Path::new(store), Path::new(lower));
    match Workspace::create(store, lower) {
        Ok(()) | Err(Error::Exists) => {}
        Err(error) => return Err(error.into()),
    }
    let workspace = Workspace::open(store, lower, Options::default())?;
    let label = label.first().map_or("work", String::as_str).as_bytes();
    let branch = match workspace.branches().into_iter().find(|branch| branch.label == label) {
        Some(branch) => branch.id,
        None => workspace.branch(workspace.base(b"as it was")?, label)?,
    };
    let mut mount = Mount::new(workspace.view(branch)?, Path::new(at))?;
    println!("mounted at {}", mount.at().display());
    mount.wait()?;
    workspace.sync()?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
