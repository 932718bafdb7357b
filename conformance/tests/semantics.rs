//! The table in docs/SEMANTICS.md says what the providers declare; that they keep it is what the rest of the suite is for.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use ah_plugin_api::{Capability, Provider};

/// Capabilities that depend on who runs the provider, so that the table says yes with a condition.
const DEPENDS: &[(&str, Capability)] = &[("git", Capability::ExactViewModes), ("zfs", Capability::Clone)];

fn providers() -> BTreeMap<&'static str, Box<dyn Provider>> {
    BTreeMap::from([
        ("git", Box::new(ah_provider_git::GitProvider::new()) as Box<dyn Provider>),
        ("btrfs", Box::new(ah_provider_btrfs::BtrfsProvider::new())),
        ("agentfs", Box::new(ah_provider_agentfs::AgentFsProvider::new())),
        ("zfs", Box::new(ah_provider_zfs::ZfsProvider::new())),
    ])
}

#[test]
fn the_table_says_what_the_providers_declare() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SEMANTICS.md")).unwrap();
    let (_, table) = text.split_once("## Provider × guarantee").unwrap();
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect() };
    let mut lines = table.lines().filter(|line| line.starts_with('|'));
    let names: Vec<String> = cells(lines.next().unwrap()).split_off(2);
    let providers = providers();
    assert_eq!(
        names.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
        providers.keys().copied().collect()
    );
    let mut said = BTreeMap::new();
    for line in lines.skip(1) {
        let cells = cells(line);
        assert_eq!(cells.len(), names.len() + 2, "{line}");
        let capability = Capability::from_text(cells[1].trim_matches('`'));
        if cells[1].is_empty() {
            assert!(cells[2..].iter().all(|cell| cell == "yes"), "what has no capability everybody keeps: {line}");
            continue;
        }
        assert_ne!(capability, Capability::Unknown, "{line}");
        for (name, cell) in names.iter().zip(&cells[2..]) {
            let declared = providers[name.as_str()].describe().capabilities.contains(&capability);
            let yes = cell.starts_with("yes");
            assert!(yes || cell.starts_with("no"), "{name}: {line}");
            let depends = DEPENDS.contains(&(name.as_str(), capability)) && cell.starts_with("yes, for root");
            assert!(yes == declared || depends, "{name} declares otherwise ({declared}): {line}");
        }
        said.insert(capability, ());
    }
    // Every capability has its row.
    for capability in Capability::ALL.iter().filter(|capability| **capability != Capability::Unknown) {
        assert!(said.contains_key(capability), "no row for {capability}");
    }
}
