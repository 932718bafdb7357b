//! Mounts a workspace by hand: `agentfs-mount [--passthrough] STORE LOWER AT [LABEL]`. Makes the store if there is none, and the branch of that label
//! (`work`) if there is none, from the lower directory as it is now. Serves until it is unmounted. With `--passthrough` large
//! files are passed through, if that can be. For trying things out, and for tests that kill it.

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
    use ah_agentfs_fuse::{Face, Mount};
    use std::path::Path;

    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let passthrough = arguments.first().is_some_and(|first| first == "--passthrough");
    arguments.drain(..usize::from(passthrough));
    let [store, lower, at, label @ ..] = &arguments[..] else {
        return Err("usage: agentfs-mount [--passthrough] STORE LOWER AT [LABEL]".into());
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
    let (at, face) = (Path::new(at), Face { passthrough, ..Face::default() });
    if std::fs::read_dir(at)?.next().is_some() {
        return Err(ah_agentfs_fuse::Error::NotEmpty(at.to_owned()).into());
    }
    let mut mount = Mount::with_face(workspace.view(branch)?, at, &face, || true)?;
    if let Some(why) = mount.passthrough().why_not() {
        eprintln!("agentfs-mount: {why}");
    }
    println!("mounted at {}", mount.at().display());
    mount.wait()?;
    workspace.sync()?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
