//! Makes one view or clone as a whole process, to measure that without anything around it:
//!
//! ```text
//! cargo run --release -p ah-provider-git --example show -- STORE WORKSPACE ID TARGET NAME [clone]
//! ```

use std::time::Instant;

use ah_plugin_api::{CloneRequest, Context, Dir, FileName, MountRequest, Place, Provider, Reference, Result};
use ah_provider_git::GitProvider;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [store, workspace, id, target, name, rest @ ..] = args.as_slice() else {
        eprintln!("usage: show STORE WORKSPACE ID TARGET NAME [clone]");
        std::process::exit(2);
    };
    let start = Instant::now();
    let (store, workspace, target) = (Dir::open(store)?, Dir::open(workspace)?, Dir::open(target)?);
    let place = Place::new(&store).with_workspace(&workspace).with_target(&target);
    let (snapshot, name) = (Reference::new(id.as_str())?, FileName::new(name.as_bytes())?);
    let (provider, cx) = (GitProvider::new(), Context::quiet());
    let (path, reference) = if rest.is_empty() {
        let view = provider.mount(&place, &MountRequest { snapshot, name, paths: Vec::new() }, &cx)?;
        (view.path, view.reference)
    } else {
        let clone = provider.clone_snapshot(&place, &CloneRequest { snapshot, name }, &cx)?;
        clone.notes.iter().for_each(|note| eprintln!("note: {note}"));
        (clone.path, clone.reference)
    };
    println!("{} {reference} {:?}", path.display(), start.elapsed());
    Ok(())
}
