//! The shapes of `docs/schema`: each JSON that a test sees is checked against the one that documents it.

use std::fs;
use std::path::Path;

use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema");

/// Fails the test unless `value` keeps the shape in `docs/schema/<shape>.json`.
pub(crate) fn check(shape: &str, value: &Value) {
    let read = |name: &str| -> Value {
        let path = Path::new(FOLDER).join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let schema = read(&format!("{shape}.json"));
    let common = read("common.json");
    let registry =
        jsonschema::Registry::new().add("https://ah.invalid/schema/common.json", common).unwrap().prepare().unwrap();
    let validator = jsonschema::options().with_registry(&registry).build(&schema).unwrap();
    let faults: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(faults.is_empty(), "not of the shape {shape}: {faults:#?}\n{value:#}");
}
