//! What somebody else does to the directory below.

/// What the lower directory has at least.
pub(super) fn plant(lower: &std::path::Path, byte: u8) {
    std::fs::create_dir_all(lower.join("a/b/c")).unwrap();
    for (name, byte, length) in [("a/a", byte, 300_000), ("a/b/a", byte + 1, 5000)] {
        if !lower.join(name).exists() {
            std::fs::write(lower.join(name), vec![byte; length]).unwrap();
        }
    }
    if lower.join("a/d").symlink_metadata().is_err() {
        std::os::unix::fs::symlink("nowhere", lower.join("a/d")).unwrap();
    }
}

/// What somebody else does there.
pub(super) fn change(lower: &std::path::Path, how: u8, byte: u8) {
    let overwrite = |name: &str, offset: u64| {
        let file = std::fs::File::options().write(true).open(lower.join(name)).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte; 100], offset).unwrap();
        file.set_modified(time).unwrap();
    };
    match how {
        0 => std::fs::remove_dir_all(lower.join("a")).unwrap(),
        1 => {
            overwrite("a/a", 200_000);
            overwrite("a/b/a", 4900);
        }
        2 => {
            std::fs::write(lower.join("new"), vec![byte; 300_000]).unwrap();
            std::fs::rename(lower.join("new"), lower.join("a/a")).unwrap();
            std::fs::remove_file(lower.join("a/b/a")).unwrap();
        }
        3 => {
            let _ = std::fs::remove_dir_all(lower.join("z"));
            std::fs::rename(lower.join("a"), lower.join("z")).unwrap();
            plant(lower, byte);
        }
        4 => {
            std::fs::remove_dir_all(lower.join("a/b")).unwrap();
            std::fs::create_dir_all(lower.join("a/b/c/a")).unwrap();
            std::fs::write(lower.join("a/b/b"), [byte]).unwrap();
        }
        5 => {
            std::fs::remove_file(lower.join("a/d")).unwrap();
            std::os::unix::fs::symlink(format!("{byte}"), lower.join("a/d")).unwrap();
            std::fs::remove_dir_all(lower.join("a/b/c")).unwrap();
        }
        6 => {
            // The numbers that became free are given out next, on many filesystems.
            std::fs::remove_dir_all(lower.join("a")).unwrap();
            for name in ["b", "c", "d"] {
                let _ = std::fs::remove_dir_all(lower.join(name));
                std::fs::create_dir(lower.join(name)).unwrap();
                std::fs::write(lower.join(name).join("a"), [byte; 50]).unwrap();
            }
            plant(lower, byte);
        }
        7 => {
            std::fs::remove_dir_all(lower.join("a")).unwrap();
            std::fs::write(lower.join("a"), [byte]).unwrap();
        }
        _ => {
            // Each where the other was.
            std::fs::rename(lower.join("a/a"), lower.join("x")).unwrap();
            std::fs::rename(lower.join("a/b/a"), lower.join("a/a")).unwrap();
            std::fs::rename(lower.join("x"), lower.join("a/b/a")).unwrap();
        }
    }
}
