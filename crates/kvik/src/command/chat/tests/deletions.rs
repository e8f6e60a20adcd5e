//! Deletions that are not complete at once.

use std::fs;

use kvik_serving::settings::disk_place::DiskPlace;

use super::*;

/// The number of files in the folders of a folder.
fn files(folder: PathBuf) -> usize {
    let folders = fs::read_dir(folder).unwrap().map(|folder| folder.unwrap().path());
    folders.map(|folder| fs::read_dir(folder).unwrap().count()).sum()
}

/// Nobody completed it, and it was said to be done.
#[test]
fn a_deletion_waits_for_whoever_writes_the_disk_cache() {
    let (other_home, home, disk) = (Home::new(), Home::new(), Home::new());
    let open = |home: &Home| {
        let cache = CacheArgs {
            cache_disk: DiskPlace::Directory(disk.file("kv")),
            cache_disk_size: ByteSize(16 << 20),
            ..CacheArgs::in_ram(CONTEXT, ByteSize(64 << 20))
        };
        Terminal::with(cache, &["--state-dir", home.0.path().to_str().unwrap()])
    };
    let other = open(&other_home);
    let mut terminal = open(&home);
    terminal.types("/save trip");
    terminal.types("Hello there!");
    let noted = home.file(FOLDER).join("computed");
    assert_eq!(files(noted.clone()), 1);
    let shown = terminal.types("/delete trip");
    assert!(shown.contains("deleted: trip; what was computed for it goes as soon as"), "{shown}");
    assert_eq!(files(noted.clone()), 1);
    drop(other);
    let deadline = Instant::now() + Duration::from_secs(60);
    while files(noted.clone()) > 0 {
        assert!(Instant::now() < deadline, "it is not completed");
        std::thread::sleep(Duration::from_millis(20));
    }
}
