//! Check of memory domains (NUMA nodes): how many the machine has, and in which of them the server would stay.

use std::{fs, path::Path};

use kvik_kernels::MemoryDomain;

use super::report::Diagnosis;
use kvik_serving::{causes::with_causes, settings::domain::DomainArgs};

const SUBJECT: &str = "memory domains";
/// Linux's setting of automatic NUMA balancing, which moves pages to the threads that read them.
const BALANCING: &str = "proc/sys/kernel/numa_balancing";

/// Binds this process to its domain, as the server would, and reports on it; `None` if the system exposes no domains.
/// `root` is the root of `/proc` and `/sys`; `bound` are the domains that the parent process bound this one to.
pub(super) fn check(
    flag: DomainArgs,
    found: &[MemoryDomain],
    bound: Option<&[usize]>,
    root: &Path,
) -> Option<Diagnosis> {
    let diagnosis = match flag.stay() {
        Err(error) => {
            Diagnosis::wrong(SUBJECT, with_causes(&error), "leave --memory-domain out, or name one of them")
        }
        Ok(Some(domain)) => Diagnosis::ok(SUBJECT, format!("this process stays in {domain}{}", of(found)))
            .with("memory_domain", domain.number),
        Ok(None) => unasked(found, bound, root)?,
    };
    Some(diagnosis.with("memory_domains", found.len()))
}

/// The report without the flag.
fn unasked(found: &[MemoryDomain], bound: Option<&[usize]>, root: &Path) -> Option<Diagnosis> {
    let list = found.iter().map(MemoryDomain::to_string).collect::<Vec<_>>().join(", ");
    let is_balanced = fs::read_to_string(root.join(BALANCING)).is_ok_and(|text| text.trim() != "0");
    Some(match (found, bound) {
        ([], _) => return None,
        ([_], _) => Diagnosis::ok(SUBJECT, "1: all memory that is used is next to all processors that are"),
        (_, Some([only])) => Diagnosis::note(
            SUBJECT,
            format!("memory comes from {only} only, threads run in {list}"),
            format!("--memory-domain {only} keeps the threads there too"),
        ),
        // Threads of all domains read all weights, so a page that moves to one of them leaves the others.
        _ if is_balanced => Diagnosis::note(
            SUBJECT,
            format!("{}: {list}; the kernel moves pages between them again and again", found.len()),
            format!("echo 0 | sudo tee /{BALANCING}, or one kvik for each: docs/nodes.md, Two sockets"),
        ),
        _ => Diagnosis::note(
            SUBJECT,
            format!(
                "{}: {list}; threads read some of the weights from the memory of another one",
                found.len()
            ),
            "`kvik bench` with --memory-domain 0 and without tells whether one kvik for each is faster: docs/nodes.md, Two sockets",
        ),
    })
}

/// The number of domains, if there are several.
fn of(found: &[MemoryDomain]) -> String {
    match found.len() {
        0 | 1 => String::new(),
        count => format!(", one of {count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    fn domains(count: usize) -> Vec<MemoryDomain> {
        (0..count).map(|number| MemoryDomain { number, cpus: vec![2 * number, 2 * number + 1] }).collect()
    }

    #[test]
    fn several_domains_are_told_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        let check = |count: usize, bound: Option<&[usize]>, expect: Option<Verdict>, contains: &str| {
            let found = check(DomainArgs::default(), &domains(count), bound, root.path());
            assert_eq!(found.as_ref().map(|found| found.verdict), expect, "{count} {bound:?}");
            let told =
                found.map_or_else(String::new, |found| found.found + &found.remedy.unwrap_or_default());
            assert!(told.contains(contains), "{told}");
        };
        check(0, None, None, "");
        check(1, None, Some(Verdict::Ok), "1: all memory");
        check(1, Some(&[0]), Some(Verdict::Ok), "1: all memory");
        check(2, None, Some(Verdict::Note), "2: 0 (processors 0-1), 1 (processors 2-3); threads");
        check(2, None, Some(Verdict::Note), "`kvik bench` with --memory-domain 0");
        check(2, Some(&[0, 1]), Some(Verdict::Note), "`kvik bench` with");
        check(2, Some(&[1]), Some(Verdict::Note), "--memory-domain 1 keeps the threads there too");
        let balancing = root.path().join(BALANCING);
        fs::create_dir_all(balancing.parent().unwrap()).unwrap();
        fs::write(&balancing, "1\n").unwrap();
        check(2, None, Some(Verdict::Note), "echo 0 | sudo tee /proc/sys/kernel/numa_balancing");
        check(1, None, Some(Verdict::Ok), "1: all memory");
        fs::write(&balancing, "0\n").unwrap();
        check(2, None, Some(Verdict::Note), "`kvik bench` with");
    }

    #[test]
    fn a_domain_that_is_not_there_is_wrong() {
        let found =
            check(DomainArgs { memory_domain: Some(1000) }, &domains(2), None, Path::new("/")).unwrap();
        assert_eq!((found.verdict, found.figures["memory_domains"].as_u64()), (Verdict::Wrong, Some(2)));
        assert!(found.found.starts_with("--memory-domain 1000: "), "{}", found.found);
    }
}
