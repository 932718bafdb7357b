//! The process in which the suite's own tests load libraries; `ah` has a hidden subcommand for that.

use std::io::stdin;
use std::os::fd::AsFd;
use std::path::Path;

fn main() {
    ah_host::leave(run())
}

fn run() -> u8 {
    let Some(library) = std::env::args_os().nth(1) else {
        eprintln!("usage: conformance-child LIBRARY, with a socket as standard input");
        return 2;
    };
    match stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => ah_conformance::child_main(Path::new(&library), socket),
        Err(error) => {
            eprintln!("standard input cannot be used: {error}");
            1
        }
    }
}
