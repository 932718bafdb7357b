//! `docs/writing-a-provider.md` shows all of the example provider's code, in order, and nothing else.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn the_tutorial_shows_the_code_that_is_compiled() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tutorial = std::fs::read_to_string(project.join("docs/writing-a-provider.md")).unwrap();
    for (language, file) in
        [("toml", "Cargo.toml"), ("rust", "src/lib.rs"), ("rust", "src/store.rs"), ("rust", "src/tree.rs")]
    {
        let source = std::fs::read_to_string(project.join("examples/minimal-provider").join(file)).unwrap();
        let shown = blocks(&tutorial, &format!("```{language} {file}"));
        let mut shown = shown.lines().filter(|line| !line.trim().is_empty());
        for (number, line) in source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            assert_eq!(shown.next(), Some(line), "{file}:{}: the tutorial (left) shows something else", number + 1);
        }
        assert_eq!(shown.next(), None, "{file}: the tutorial shows more than there is");
    }
    let files = std::fs::read_dir(project.join("examples/minimal-provider/src")).unwrap().count();
    assert_eq!(files, 3, "a source file of the example is not in the tutorial");
}

/// The code blocks that begin with `fence`, one after the other.
fn blocks(text: &str, fence: &str) -> String {
    let mut found = String::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            _ if line == fence => inside = true,
            "```" => inside = false,
            _ if inside => {
                found.push_str(line);
                found.push('\n');
            }
            _ => {}
        }
    }
    found
}
