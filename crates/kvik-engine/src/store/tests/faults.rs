//! Disks that are full, read-only or removed, and paths that are links.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::stats::DiskRole;
use crate::store::{Picked, erase_at_rest};

/// Blocks that fit below the child's file size limit, and that limit in units of 512 bytes: the write of
/// the next block stops in its middle.
const BLOCKS_THAT_FIT: u64 = 8;
const FILE_LIMIT: &str = "200";
/// Variable with the directory of the child process's store.
const CHILD_DIR: &str = "KVIK_FULL_DISK_CHILD";

/// A file size limit simulates a full disk: the system writes what fits and refuses the rest. The shell
/// sets it, and ignores its signal.
#[test]
fn on_a_full_disk_stored_blocks_stay_and_writing_pauses() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("trap '' XFSZ; ulimit -f {FILE_LIMIT}; exec \"$0\" \"$@\"");
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", &script]).arg(test).args(["--exact", "store::tests::faults::full_disk_child"]);
    let output = child.env(CHILD_DIR, dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut opened = open(&config(dir.path(), 20)).unwrap();
    let found: Vec<u32> = opened.records.iter().map(|(slot, _)| slot.0).collect();
    assert_eq!(found, (0..BLOCKS_THAT_FIT as u32).collect::<Vec<_>>());
    assert_eq!(
        opened.records[1].1,
        record(1),
        "what was meant for the block that was not written is not done to another"
    );
    opened.store.put(8, &record(8)).unwrap();
}

/// The child of the test above, which runs under the limit; does nothing by itself.
#[test]
fn full_disk_child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut store = open(&config(Path::new(&dir), 20)).unwrap().store;
    let results: Vec<_> = (0..10).map(|number| store.put(number as u32, &record(number))).collect();
    let mut expected = vec![Ok(()); BLOCKS_THAT_FIT as usize];
    expected.extend([Err(IoFault::Full), Err(IoFault::Resting)]);
    assert_eq!(results, expected);
    for number in 0..BLOCKS_THAT_FIT {
        store.get(number as u32, record(number).identity).unwrap();
    }
    assert_eq!(store.get(8, record(8).identity), Err(IoFault::Corrupt));
    assert_eq!(store.put(1, &record(41)), Err(IoFault::Resting));
    store.pin(SlotId(1), true);
    store.touch(SlotId(1), Use { at_s: 1, expires_s: 2, ..record(41).use_ });
    // After the pause it writes again: rewriting a slot needs no more space.
    let again = poll(|| match store.put(0, &record(40)) {
        Err(IoFault::Resting) => None,
        other => Some(other),
    });
    assert_eq!(again, Ok(()));
    store.get(0, record(40).identity).unwrap();
    store.put(0, &record(0)).unwrap();
}

#[test]
fn a_store_needs_a_writable_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    for root in [file.clone(), file.join("below"), PathBuf::from("/proc/kvik")] {
        let error = open(&config(&root, 2)).unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
        assert!(error.to_string().contains(root.to_str().unwrap()), "{error}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "mine");
}

/// A process that has too many files open is an example of a system that fails for a moment.
#[test]
fn files_that_the_system_does_not_open_stay_as_they_are() {
    survive_a_child("few_files_child");
}

/// The child of the test above; does nothing by itself.
#[test]
fn few_files_child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    leave_one_file();
    let error = open(&config(Path::new(&dir), 3)).unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if path.ends_with("headers")), "{error}");
}

/// Nobody is told that blocks are erased that could not be looked at.
#[test]
fn files_that_the_system_does_not_open_do_not_count_as_erased() {
    survive_a_child("few_files_erasing_child");
}

/// The child of the test above; does nothing by itself.
#[test]
fn few_files_erasing_child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    leave_one_file();
    let error = erase_at_rest(Path::new(&dir), |_| Picked::All).unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if path.ends_with("headers")), "{error}");
}

/// Runs a test of this file in a process of its own over three blocks, which all survive it.
fn survive_a_child(name: &str) {
    let scene = Scene::filled(3);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("store::tests::faults::{name}")]);
    let output = child.env(CHILD_DIR, &scene.config.dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // A name that no test has fails nothing.
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(scene.survivors().len(), 3);
}

/// Lets this process have one more file open: the lowest free number is for the lock, and none is left for the headers.
fn leave_one_file() {
    let free = fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = u64::try_from(free).unwrap() + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..getrlimit(Resource::Nofile) }).unwrap();
}

#[test]
fn a_removed_directory_is_created_again() {
    let scene = Scene::filled(3);
    let mut store = scene.open().store;
    fs::remove_dir_all(&scene.config.dir).unwrap();
    // The open files can still be read until the writer notices.
    store.get(0, record(0).identity).unwrap();
    poll(|| {
        store.put(1, &record(11)).unwrap();
        scene.files()[0].exists().then_some(())
    });
    assert_eq!(store.get(0, record(0).identity), Err(IoFault::Corrupt));
    assert_eq!(store.get(1, record(11).identity), Ok(()));
    assert_ne!(scene.open().store.role(), DiskRole::Writer, "the new lock is held too");
    drop(store);
    assert_eq!(scene.survivors(), [(1, record(11))]);
}

#[test]
fn a_removed_directory_that_cannot_be_created_again_leaves_the_store_readable() {
    let scene = Scene::filled(3);
    let mut store = scene.open().store;
    fs::remove_dir_all(&scene.config.dir).unwrap();
    fs::write(&scene.config.dir, "in the way").unwrap();
    let fault = poll(|| store.put(1, &record(11)).err());
    assert_eq!(fault, IoFault::Failed);
    assert_eq!(store.put(1, &record(11)), Err(IoFault::Resting));
    store.get(0, record(0).identity).unwrap();
}

#[test]
fn links_and_other_files_at_the_paths_of_a_store_are_replaced() {
    let scene = Scene::filled(2);
    let [headers, payloads] = scene.files();
    let target = scene.dir.path().join("target");
    let held = fs::read(&headers).unwrap();
    fs::write(&target, &held).unwrap();
    for path in [&headers, &payloads] {
        fs::remove_file(path).unwrap();
        symlink(&target, path).unwrap();
        let mut opened = scene.open();
        assert_eq!((opened.records.len(), opened.notes.len()), (0, 1));
        opened.store.put(0, &record(0)).unwrap();
        drop(opened);
        assert_eq!(scene.survivors().len(), 1);
        assert_eq!(fs::read(&target).unwrap(), held, "the link's target is unchanged");
    }
}

#[test]
fn a_link_at_the_path_of_the_directory_is_replaced() {
    let scene = Scene::filled(2);
    let [headers, _] = scene.files();
    let (ours, elsewhere) = (headers.parent().unwrap(), scene.dir.path().join("elsewhere"));
    fs::rename(ours, &elsewhere).unwrap();
    symlink(&elsewhere, ours).unwrap();
    scene.open().store.put(0, &record(5)).unwrap();
    assert_eq!(scene.survivors(), [(0, record(5))]);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 2);
}

#[test]
fn a_link_at_the_path_of_the_lock_is_not_followed() {
    let scene = Scene::filled(1);
    let [headers, _] = scene.files();
    let lock = headers.parent().unwrap().with_extension("lock");
    fs::remove_file(&lock).unwrap();
    symlink("/dev/null", &lock).unwrap();
    assert!(matches!(open(&scene.config), Err(StoreError::Io { .. })));
}

#[test]
fn a_pipe_at_the_path_of_a_file_does_not_block() {
    let scene = Scene::filled(1);
    let [headers, _] = scene.files();
    fs::remove_file(&headers).unwrap();
    assert!(Command::new("mkfifo").arg(&headers).status().unwrap().success());
    assert_eq!(scene.open().notes.len(), 1);
}
