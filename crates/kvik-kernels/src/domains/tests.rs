//! Tests with domains of machines described by files, and with the machine that runs the tests.

use std::fs;
use std::path::PathBuf;

use super::*;

/// Creates a system folder with these files of its nodes.
fn system(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let sys = std::env::temp_dir().join(format!("kvik-domains-{}-{name}", std::process::id()));
    for (file, text) in files {
        let path = sys.join("devices/system/node").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    sys
}

/// Checks the formatted domains of that system for a process that may use `allowed`.
fn check(name: &str, files: &[(&str, &str)], allowed: &[usize], expect: &str) {
    let sys = system(name, files);
    assert_eq!(list(&MemoryDomain::read(&sys, allowed)), expect, "{name}");
    let _ = fs::remove_dir_all(sys);
}

#[test]
fn domains_of_many_machines() {
    let eight = &[0, 1, 2, 3, 4, 5, 6, 7];
    check("one", &[("node0/cpulist", "0-7\n")], eight, "0 (processors 0-7)");
    let two = &[("node0/cpulist", "0-1,4-5\n"), ("node1/cpulist", "2-3,6-7\n"), ("online", "0-1\n")];
    check("hyperthreads", two, eight, "0 (processors 0-1,4-5), 1 (processors 2-3,6-7)");
    check("taskset", two, &[1, 4, 7], "0 (processors 1,4), 1 (processors 7)");
    check("one socket of a container", two, &[2, 3], "1 (processors 2-3)");
    // CXL memory has no processors; numbers may be missing, and are ordered as numbers, not as text.
    let far =
        &[("node0/cpulist", "0\n"), ("node2/cpulist", "\n"), ("node10/cpulist", "2"), ("node9/cpulist", "1")];
    check("far memory", far, eight, "0 (processors 0), 9 (processors 1), 10 (processors 2)");
    check("no domains", &[], eight, "");
}

#[test]
fn what_makes_no_sense_is_left_out() {
    let whole = ("node0/cpulist", "0\n");
    let long = "1,".repeat(1 << 20);
    let odd = [
        "x",
        "3-",
        "-3",
        "1-x",
        "+1",
        "1 2",
        "0x1",
        "1-99999999999999999999999",
        "0-18446744073709551615",
        "1024",
    ];
    for (number, text) in odd.into_iter().enumerate() {
        check(&format!("odd {number}"), &[whole, ("node1/cpulist", text)], &[0, 1], "0 (processors 0)");
    }
    check("backwards", &[whole, ("node1/cpulist", "7-3")], &[0, 3, 7], "0 (processors 0)");
    check("long", &[whole, ("node1/cpulist", &long)], &[0, 1], "0 (processors 0)");
    check("twice", &[("node0/cpulist", "1,0-1,1")], &[0, 1], "0 (processors 0-1)");
    check(
        "names",
        &[whole, ("nodes/cpulist", "1"), ("node-1/cpulist", "1"), ("node1024/cpulist", "1")],
        &[0, 1],
        "0 (processors 0)",
    );
    check("folder", &[whole, ("node1/cpulist/x", "1")], &[0, 1], "0 (processors 0)");
}

#[test]
fn a_domain_that_is_not_there_is_named_with_those_that_are() {
    let domain = |number, cpus: &[usize]| MemoryDomain { number, cpus: cpus.to_vec() };
    let two = vec![domain(0, &[0, 1]), domain(1, &[2, 3])];
    assert_eq!(MemoryDomain::choose(two.clone(), 1).unwrap(), two[1]);
    let error = MemoryDomain::choose(two, 2).unwrap_err().to_string();
    assert_eq!(
        error,
        "memory domain 2 has no processor that this process may use; those that have some are 0 (processors 0-1), 1 (processors 2-3)"
    );
    assert!(matches!(MemoryDomain::choose(Vec::new(), 0), Err(DomainError::Unknown)));
}

/// Runs in a thread of its own, because binding cannot be undone.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_stays_in_its_domain_and_threads_it_starts_do() {
    let Some(domain) = memory_domains().pop() else { return };
    let number = domain.number;
    let state = || (allowed_cpus(), bound_memory_domains());
    let before = state();
    let stays = std::thread::spawn(move || {
        let stayed = stay_in_memory_domain(number);
        (stayed, state(), std::thread::spawn(state).join().unwrap())
    });
    match stays.join().unwrap() {
        (Ok(stayed), own, child) => {
            assert_eq!(stayed, domain);
            assert_eq!(own, (Some(domain.cpus), Some(vec![number])));
            assert_eq!(child, own);
        }
        // A container may forbid it.
        (Err(error), ..) => assert!(matches!(error, DomainError::Memory { .. }), "{error}"),
    }
    assert_eq!(state(), before, "other threads go where they went");
    assert!(matches!(stay_in_memory_domain(NUMBER_MAX - 1), Err(DomainError::Missing { .. })));
}
