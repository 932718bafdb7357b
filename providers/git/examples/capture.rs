//! Takes one snapshot as a whole process, to measure a capture without anything around it:
//!
//! ```text
//! cargo run --release -p ah-provider-git --example capture -- STORE WORKSPACE ID [durable]
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use ah_plugin_api::{
    CapturePolicy, Context, Dir, Durability, Place, Provider, Result, SnapshotId, SnapshotRequest, Timestamp,
};
use ah_provider_git::GitProvider;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [store, workspace, id, rest @ ..] = args.as_slice() else {
        eprintln!("usage: capture STORE WORKSPACE ID [durable]");
        std::process::exit(2);
    };
    let start = Instant::now();
    let (store, workspace) = (Dir::open(store)?, Dir::open(workspace)?);
    let request = SnapshotRequest {
        id: SnapshotId::new(id.as_str())?,
        created: Timestamp::now(),
        label: None,
        attributes: BTreeMap::new(),
        durability: if rest.is_empty() { Durability::Instant } else { Durability::Durable },
        policy: CapturePolicy::default(),
    };
    let place = Place::new(&store).with_workspace(&workspace);
    let taken = GitProvider::new().snapshot(&place, &request, &Context::quiet())?;
    println!("{} entries, {} omitted, {:.1?}", taken.entries.unwrap_or(0), taken.omitted_total, start.elapsed());
    Ok(())
}
