//! Where a conversation is cut, and where it goes on, when something came in between.

use std::fs;

use ah_core::{Access, GcOptions};

use crate::conversations::talked;
use crate::lab::Lab;
use crate::talk::{ID, Talk};

pub(crate) fn copy_of(lab: &Lab, talk: &Talk, from: &str) -> String {
    let made = lab.open().session_branch(&talk.branch_of(from, "cut")).unwrap();
    let copy = fs::read_to_string(made.conversation.transcript.as_ref().unwrap()).unwrap();
    lab.open().remove_branch("cut", true).unwrap();
    copy
}

#[test]
fn what_was_said_when_the_clock_had_gone_back_is_not_before_what_was_marked_earlier() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let marked = talk.mark(&lab);
    lab.wait(-7200);
    talk.turn(&lab, "the third", "3");
    let copy = copy_of(&lab, &talk, &marked);
    assert!(copy.contains("done with the second") && !copy.contains("the third"), "{copy}");
    // Nor when the clock has caught up.
    lab.wait(9000);
    talk.turn(&lab, "the fourth", "4");
    let copy = copy_of(&lab, &talk, &marked);
    assert!(copy.contains("done with the second") && !copy.contains("the third"), "{copy}");
}

#[test]
fn what_the_agents_own_rewinding_gave_up_is_there_at_a_moment_before_that() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    let marked = talk.mark(&lab);
    talk.turn(&lab, "the third", "3");
    // The third prompt hangs on the first turn, as when the person had gone back behind the second.
    let text = fs::read_to_string(&talk.file).unwrap();
    let id = |line: &str, name: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()[name].as_str().unwrap_or_default().to_owned()
    };
    let first = text.lines().find(|line| line.contains("done with the first")).unwrap();
    let third = text.lines().find(|line| line.contains(r#""content":"the third""#)).unwrap();
    let (hangs, hung) = (id(first, "uuid"), id(third, "parentUuid"));
    let moved = third.replace(&format!(r#""parentUuid":"{hung}""#), &format!(r#""parentUuid":"{hangs}""#));
    assert!(moved != third && moved.len() == third.len());
    fs::write(&talk.file, text.replace(third, &moved)).unwrap();
    let copy = copy_of(&lab, &talk, &marked);
    assert!(copy.contains("done with the second") && !copy.contains("the third"), "{copy}");
    let copy = copy_of(&lab, &talk, "@prompt");
    assert!(copy.contains("done with the first") && !copy.contains("the second"), "given up: {copy}");
}

#[test]
fn an_agent_goes_on_in_its_own_directory_though_that_comes_back_with_the_files() {
    let lab = Lab::new();
    lab.write("sub/f", "x");
    let mut talk = talked(&lab);
    let record = lab.folder().join("sessions/claude-one/session.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    fields["agent"]["start"] = lab.path().join("sub").to_str().unwrap().into();
    fs::write(&record, fields.to_string()).unwrap();
    talk.turn(&lab, "the third", "3");
    fs::remove_dir_all(lab.path().join("sub")).unwrap();
    let made = lab.open().rewind(&talk.back_to("@prompt")).unwrap();
    assert!(lab.path().join("sub/f").exists());
    assert_eq!(made.conversation.unwrap().cwd, lab.path().join("sub"));
}

#[test]
fn a_conversation_that_begins_anew_joins_its_session_whatever_others_are_called() {
    let mut lab = Lab::new();
    let talk = talked(&lab);
    let other = lab.top.join("other");
    fs::create_dir(&other).unwrap();
    let id = lab.engine().workspace(&other, Access::Create).unwrap().id().as_str().to_owned();
    let record = |id: &str| lab.settings.home.join(format!("workspaces/{id}/sessions/claude-one/session.json"));
    fs::create_dir_all(record(&id).parent().unwrap()).unwrap();
    fs::copy(record(lab.open().id().as_str()), record(&id)).unwrap();
    let made = lab.open().rewind(&talk.back_to("@prompt{2}")).unwrap();
    assert_eq!(made.conversation.unwrap().agent_session, None, "it starts anew");
    // As in the command that was printed.
    lab.settings.agent_session = Some(talk.session.clone());
    let call = |id: &str, cwd: &std::path::Path| {
        let event = format!(r#"{{"session_id":"{id}","cwd":{cwd:?},"hook_event_name":"SessionStart"}}"#);
        let event = ah_agents::hook::read(ah_agents::Agent::Claude, &mut event.as_bytes()).unwrap();
        lab.engine().hook(&event, &ah_core::HookContext::default()).unwrap().unwrap().session
    };
    assert_eq!(call("new", &lab.path()), talk.session);
    assert_ne!(call("newer", &lab.path()), talk.session, "that is another agent's by now");
}

#[test]
fn a_branch_that_did_not_get_ready_takes_its_conversation_along_though_another_is_made_first() {
    let lab = Lab::new();
    let talk = talked(&lab);
    let made = lab.open().session_branch(&talk.branch_of("@prompt", "retry")).unwrap();
    let (id, copy) = (made.conversation.agent_session.unwrap(), made.conversation.transcript.unwrap());
    // As a kill right before the branch was ready leaves it.
    let file = lab.settings.home.join(format!("branches/{}.json", made.branch.id));
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record["state"] = "making".into();
    record["maker"]["start"] = 1.into();
    fs::write(&file, record.to_string()).unwrap();
    let bytes = fs::metadata(&copy).unwrap().len();
    let intent = serde_json::json!({
        "version": 1, "id": id, "maker": record["maker"], "workspace": made.branch.workspace, "session": "retry",
        "files": [{"path": copy, "bytes": bytes}],
    });
    let folder = lab.folder().join("conversations");
    fs::write(folder.join(format!("{id}.json")), intent.to_string()).unwrap();
    lab.open().session_branch(&talk.branch_of("@prompt", "other")).unwrap();
    assert!(copy.exists());
    let report = lab.open().gc(&GcOptions::default()).unwrap();
    assert!(!copy.exists() && report.failures.is_empty(), "{report:?}");
    assert!(talk.file.exists() && talk.files().len() == 2 && !id.is_empty() && id != ID);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn a_moment_without_a_snapshot_gives_way_to_one_on_its_own_line() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    talk.turn(&lab, "the third", "3");
    let back = lab.open().rewind(&talk.back_to("@prompt")).unwrap().conversation.unwrap();
    talk.file = back.transcript.unwrap();
    *lab.fake.fails.lock().unwrap() = Some(ah_core::Error::new(ah_core::ErrorKind::Internal, "broken"));
    talk.turn(&lab, "the fourth", "4");
    *lab.fake.fails.lock().unwrap() = None;
    let made = lab.open().session_branch(&talk.branch_of("@prompt", "cut")).unwrap();
    assert!(
        made.notes
            .iter()
            .any(|note| note.contains(&format!("files and conversation are those of {} before it", made.from.moment))),
        "{:?}",
        made.notes
    );
    // The third, which was left, is the nearest by time.
    assert_eq!(fs::read_to_string(made.branch.path.join("a")).unwrap(), "2");
    let copy = fs::read_to_string(made.conversation.transcript.as_ref().unwrap()).unwrap();
    assert!(copy.contains("done with the second") && !copy.contains("the third"), "{copy}");
}

#[test]
fn a_moment_after_files_were_put_back_has_those() {
    let lab = Lab::new();
    let mut talk = talked(&lab);
    // By hand, between the agent's turns; the last of the first turn.
    let first = lab.open().prompts(true, 9).unwrap()[0].moment.to_string();
    lab.open().restore(&first, &ah_core::RestoreOptions::default()).unwrap();
    *lab.fake.fails.lock().unwrap() = Some(ah_core::Error::new(ah_core::ErrorKind::Internal, "broken"));
    talk.turn(&lab, "the third", "3");
    *lab.fake.fails.lock().unwrap() = None;
    let made = lab.open().session_branch(&talk.branch_of("@prompt", "cut")).unwrap();
    assert_eq!(fs::read_to_string(made.branch.path.join("a")).unwrap(), "1");
    let copy = fs::read_to_string(made.conversation.transcript.as_ref().unwrap()).unwrap();
    assert!(copy.contains("done with the first") && !copy.contains("the second"), "{copy}");
}
