//! `convert`: another directory at the workspace's path, with the same in it.

use std::os::unix::fs::DirBuilderExt;

use ah_plugin_api::{
    Capability, Context, ConvertRequest, Converted, DestroyRequest, Dir, Error, ErrorKind, ListRequest, Place,
    Provider, Reclaimed,
};

use crate::case::{Case, Check, Need, Trouble, ensure, refused, same};
use crate::editor::Editor;
use crate::fixture::Fixture;
use crate::tree::{Modes, Tree};

const NEEDS: &[Need] = &[Need::Has(Capability::Convert)];

pub(super) const CASES: &[Case] = &[
    Case {
        id: "convert.same-contents",
        clauses: &[
            "Makes the workspace a unit of its own (a subvolume, say), so that snapshots hold it and nothing else.",
            "Another directory is at the workspace's path afterwards, with the same contents, names, permissions, owners and times.",
            "Whether anything was done; false: the workspace was such a unit already, or a plain directory again.",
        ],
        needs: NEEDS,
        run: same_contents,
    },
    Case {
        id: "convert.busy",
        clauses: &[
            "`Busy` while a process has something in it open, with the process named where it can be found out;",
        ],
        needs: NEEDS,
        run: busy,
    },
    Case {
        id: "convert.atomic",
        clauses: &["The exchange is atomic: whoever looks sees the old directory or the new one, whole."],
        needs: NEEDS,
        run: atomic,
    },
    Case {
        id: "convert.back",
        clauses: &[
            "[`ConvertRequest::back`] makes what is mounted so a plain directory again, with the same contents and under the same conditions; snapshots stay.",
            "It goes without a workspace, as an open one is in use.",
            "Where that was done already, it is success.",
        ],
        needs: NEEDS,
        run: back,
    },
];

fn convert(f: &Fixture) -> Result<Converted, Error> {
    let place = Place::new(f.store()).with_workspace(f.workspace());
    f.provider().convert(&place, &ConvertRequest::default(), &Context::quiet())
}

fn same_contents(f: &Fixture) -> Check {
    f.ws.sample()?;
    f.ws.write("linked", "two names")?;
    f.ws.link("linked", "other name")?;
    f.ws.fifo("fifo")?;
    f.ws.write("closed/in", "x")?;
    f.ws.chmod("closed", 0o555)?;
    let before = Tree::walk(f.ws.root())?;
    convert(f)?;
    same("the workspace after convert", &before.differences(&Tree::walk(f.ws.root())?, Modes::Exact))?;
    // It is another directory now: what was opened before is not it.
    let after = f.another()?;
    ensure!(!convert(&after)?.changed, "convert of what was converted says that it did something");
    let Reclaimed { actions, .. } =
        f.provider().reclaim(&Place::new(f.store()), &Default::default(), &Context::quiet())?;
    ensure!(actions.iter().all(|action| !action.is_empty()), "reclaim did something that it cannot name");
    same("the workspace after reclaim", &before.differences(&Tree::walk(f.ws.root())?, Modes::Exact))?;
    let taken = after.take("a")?;
    ensure!(taken.snapshot.pins.is_none(), "a snapshot of what was converted holds more than the workspace");
    after.shows(&taken)
}

fn busy(f: &Fixture) -> Check {
    f.ws.sample()?;
    let before = Tree::walk(f.ws.root())?;
    let open = std::fs::File::options().append(true).open(f.ws.at("README.md"))?;
    // A workspace that is such a unit already is not touched at all.
    match convert(f) {
        Ok(converted) => ensure!(!converted.changed, "a workspace was converted while a file in it was open"),
        refusal => {
            let named =
                refusal.as_ref().is_err_and(|error| error.to_string().contains(&std::process::id().to_string()));
            refused(refusal, &[ErrorKind::Busy], "convert while a file is open")?;
            ensure!(named, "the process that holds a file open is not named");
        }
    }
    drop(open);
    same("the workspace", &before.differences(&Tree::walk(f.ws.root())?, Modes::Exact))
}

fn atomic(f: &Fixture) -> Check {
    f.ws.sample()?;
    let marker = f.ws.at("README.md");
    let done = std::sync::atomic::AtomicBool::new(false);
    let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
    let (converted, missed) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut missed = 0_u32;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                missed += u32::from(marker.symlink_metadata().is_err());
                let _ = begun.try_send(());
            }
            missed
        });
        // Not before somebody looks.
        let _ = has_begun.recv();
        let converted = convert(f);
        done.store(true, std::sync::atomic::Ordering::Release);
        (converted, looking.join().unwrap_or(1))
    });
    converted?;
    ensure!(missed == 0, "a file was not there in {missed} looks while its workspace was converted");
    Ok(())
}

/// In a directory of its own, as the fixture's workspace may be something that cannot be converted.
fn back(f: &Fixture) -> Check {
    let (at, store) = (f.beside("plain"), f.beside("plain-store"));
    std::fs::create_dir(&at)?;
    std::fs::DirBuilder::new().mode(0o700).create(&store)?;
    let (ws, store) = (Editor::new(&at), Dir::open(&store)?);
    ws.sample()?;
    ws.write("linked", "two names")?;
    ws.link("linked", "other name")?;
    let before = Tree::walk(&at)?;
    let convert = |back: bool| {
        let workspace = if back { None } else { Some(Dir::open(&at)?) };
        let place = Place::new(&store);
        let place = workspace.as_ref().map_or(place, |workspace| Place::new(&store).with_workspace(workspace));
        f.provider().convert(&place, &ConvertRequest { back }, &Context::quiet())
    };
    if !convert(false)?.mounted {
        return Ok(());
    }
    let worked = (|| {
        same("what is mounted", &before.differences(&Tree::walk(&at)?, Modes::Exact))?;
        ws.write("README.md", "changed")?;
        let taken = f.provider().snapshot(
            &Place::new(&store).with_workspace(&Dir::open(&at)?),
            &f.request("mounted"),
            &Context::quiet(),
        )?;
        ws.write("README.md", "changed again")?;
        let open = std::fs::File::options().append(true).open(ws.at("README.md"))?;
        refused(convert(true), &[ErrorKind::Busy], "convert back while a file is open")?;
        drop(open);
        Ok::<_, Trouble>((taken, Tree::walk(&at)?))
    })();
    // Whatever failed, nothing stays mounted.
    let converted = convert(true);
    let (taken, before) = worked?;
    let converted = converted?;
    ensure!(converted.changed && !converted.mounted, "convert back says that it did nothing");
    let again = convert(true)?;
    ensure!(!again.changed && !again.mounted, "convert back says that it did something once more");
    same("the workspace after convert back", &before.differences(&Tree::walk(&at)?, Modes::Exact))?;
    let listed = f.provider().list(&Place::new(&store), &ListRequest::default(), &Context::quiet())?;
    ensure!(listed.iter().any(|snapshot| snapshot.id == taken.id), "a snapshot went with convert back");
    f.provider().destroy(&Place::new(&store), &DestroyRequest::Snapshot(taken.reference), &Context::quiet())?;
    f.provider().reclaim(&Place::new(&store), &Default::default(), &Context::quiet())?;
    same("the workspace after reclaim", &before.differences(&Tree::walk(&at)?, Modes::Exact))
}
