//! The header that is committed is the one that these sources make.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    config.header = Some(std::fs::read_to_string(here.join("header.txt")).unwrap().trim_end().to_owned());
    // It follows the modules from there.
    let builder = cbindgen::Builder::new().with_config(config).with_src(here.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = here.join("include/agentfs.h");
    if std::env::var_os("AGENTFS_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(committed == made, "include/agentfs.h is not what the sources say: AGENTFS_WRITE_HEADER=1 writes it anew");
}
