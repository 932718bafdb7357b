//! The service of AgentFS as a program. `ah` starts it; nobody needs to.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::io::Write;
    use std::path::Path;
    use std::process::ExitCode;

    use ah_plugin_api::wire;
    use ah_provider_agentfs::service;

    const USAGE: &str = "\
ah-agentfsd - keeps the AgentFS branches of one workspace mounted; ah starts it by itself

usage: ah-agentfsd --start HOME   start it in the background, unless it runs
       ah-agentfsd --serve HOME   be it
       ah-agentfsd --mourn HOME PID   see to it that process PID, which is it, can be killed
       ah-agentfsd --fsck HOME [--repair]   check what is kept, while it does not run, and mend what can be mended
       ah-agentfsd --passthrough HOME [--off]   root: have large files passed through in what it mounts once it has begun anew, or not any more

HOME is the folder $AH_HOME/workspaces/<id>/providers/agentfs.
";
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let word = arguments.first().and_then(|word| word.to_str());
    let outcome = match (word, arguments.get(1), arguments.len()) {
        (Some("--start"), Some(home), 2) => service::start(Path::new(home)),
        (Some("--serve"), Some(home), 2) => service::run(Path::new(home)).map(|()| ExitCode::SUCCESS),
        (Some("--mourn"), Some(home), 3) => {
            let service = arguments.get(2).and_then(|service| service.to_str()).unwrap_or_default();
            service::mourn(Path::new(home), service).map(|()| ExitCode::SUCCESS)
        }
        (Some("--fsck"), Some(home), 2) => service::fsck(Path::new(home), false),
        (Some("--fsck"), Some(home), 3) if arguments[2] == "--repair" => service::fsck(Path::new(home), true),
        (Some("--passthrough"), Some(home), 2) => service::passthrough(Path::new(home), true),
        (Some("--passthrough"), Some(home), 3) if arguments[2] == "--off" => {
            service::passthrough(Path::new(home), false)
        }
        (Some("--version"), None, 1) => {
            println!("ah-agentfsd {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        (Some("--help" | "-h"), None, 1) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        let whole = [vec![error.message.clone()], error.causes.clone()].concat().join(": ");
        eprintln!("ah-agentfsd: {whole}");
        match (word, &error.hint) {
            // A person reads it.
            (Some("--fsck" | "--passthrough"), Some(hint)) => eprintln!("hint: {hint}"),
            (Some("--fsck" | "--passthrough"), None) => {}
            _ => _ = std::io::stdout().write_all(&wire::encode(&error).unwrap_or_default()),
        }
        ExitCode::FAILURE
    })
}

#[cfg(not(target_os = "linux"))]
fn main() {}
