//! Checks of the port, the limit on open files, the clock, and downloads.

use std::time::{Duration, SystemTime};

use super::report::Diagnosis;
use crate::command::{
    serve::check_clock,
    serve_args::{CONNECTIONS_MAX, ServeArgs, connections_max},
    variables::{check_key, is_set},
};
use kvik_serving::causes::with_causes;

/// A lower bound on the time, the beginning of 2026: current certificates are not valid before.
const FROM_1970_TO_2026: Duration = Duration::from_secs(1_767_225_600);

/// All of these checks.
pub(super) fn all(args: &ServeArgs) -> Vec<Diagnosis> {
    vec![port(args), files(connections_max()), clock(SystemTime::now()), downloads()]
}

/// Whether the server could listen, and who could reach it.
fn port(args: &ServeArgs) -> Diagnosis {
    const SUBJECT: &str = "port";
    let listen = || -> anyhow::Result<std::net::SocketAddr> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        Ok(runtime.block_on(args.access.listen())?.local_addr()?)
    };
    let address = match listen() {
        Ok(address) => address,
        Err(error) => {
            let remedy =
                format!("`ss -ltnp 'sport = :{}'` shows who has it; --port names another", args.access.port);
            return Diagnosis::wrong(SUBJECT, with_causes(&error), remedy);
        }
    };
    let exposed = match args.accounts.has_tenants() {
        true => Ok(()),
        false => args.access.keys().and_then(|keys| {
            check_key(&keys, is_set)?;
            args.access.check_exposure(address, &keys)
        }),
    };
    match exposed {
        Ok(()) => Diagnosis::ok(SUBJECT, format!("{address} is free")).with("address", address.to_string()),
        Err(error) => {
            Diagnosis::wrong(SUBJECT, with_causes(&error), "give the server a key, or --host 127.0.0.1")
        }
    }
}

/// Whether the limit on open files allows as many connections as the server would serve.
fn files(connections: usize) -> Diagnosis {
    const SUBJECT: &str = "open files";
    let found = format!("their limit allows {connections} connections");
    let diagnosis = match (connections as u64) < CONNECTIONS_MAX {
        true => {
            Diagnosis::note(SUBJECT, found, "raise it with `ulimit -n 4096`, or LimitNOFILE= of a service")
        }
        false => Diagnosis::ok(SUBJECT, found),
    };
    diagnosis.with("connections_max", connections)
}

fn clock(now: SystemTime) -> Diagnosis {
    const SUBJECT: &str = "clock";
    const REMEDY: &str = "set it right, as with `timedatectl set-ntp true`";
    if let Err(error) = check_clock(now) {
        return Diagnosis::wrong(SUBJECT, with_causes(&error), REMEDY);
    }
    match now < SystemTime::UNIX_EPOCH + FROM_1970_TO_2026 {
        true => {
            Diagnosis::note(SUBJECT, "before the year 2026: downloads and times to live go wrong", REMEDY)
        }
        false => Diagnosis::ok(SUBJECT, "right, as far as can be told"),
    }
}

/// Whether models can be downloaded, which needs TLS.
fn downloads() -> Diagnosis {
    const SUBJECT: &str = "downloads";
    match kvik_shelf::tls::provider() {
        Ok(provider) => Diagnosis::ok(SUBJECT, format!("by TLS of {}", provider.name())),
        Err(error) => Diagnosis::note(
            SUBJECT,
            error.to_string(),
            "install a package of kvik, which has another implementation, or fetch files of models by other means",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::super::report::Verdict;
    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn at(flags: &[&str]) -> Diagnosis {
        port(&Flags::try_parse_from([&["kvik"], flags].concat()).unwrap().serve)
    }

    #[test]
    fn a_port_that_another_has_is_wrong() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = other.local_addr().unwrap().port().to_string();
        let taken = at(&["--port", &number]);
        assert_eq!(taken.verdict, Verdict::Wrong, "{}", taken.found);
        assert!(taken.found.contains(&number) && taken.remedy.unwrap().contains(&number));
        drop(other);
        let free = at(&["--port", "0"]);
        assert_eq!(free.verdict, Verdict::Ok, "{}", free.found);
    }

    #[test]
    fn a_server_without_a_key_that_others_could_reach_is_wrong() {
        let open: &[&str] = &["--port", "0", "--host", "0.0.0.0"];
        assert_eq!(at(open).verdict, Verdict::Wrong);
        assert_eq!(at(&[open, &["--api-key", "k"]].concat()).verdict, Verdict::Ok);
        assert_eq!(at(&[open, &["--tenants", "tenants.toml"]].concat()).verdict, Verdict::Ok);
        assert_eq!(at(&[open, &["--api-key-file", "/nowhere/at/all"]].concat()).verdict, Verdict::Wrong);
    }

    #[test]
    fn few_open_files_are_told() {
        assert_eq!(files(CONNECTIONS_MAX as usize).verdict, Verdict::Ok);
        assert_eq!(files(CONNECTIONS_MAX as usize - 1).verdict, Verdict::Note);
    }

    #[test]
    fn a_clock_that_stands_wrong_is_told() {
        let after = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(clock(SystemTime::UNIX_EPOCH - Duration::from_secs(1)).verdict, Verdict::Wrong);
        assert_eq!(clock(after(0)).verdict, Verdict::Note);
        assert_eq!(clock(after(1_767_225_600)).verdict, Verdict::Ok);
        assert_eq!(clock(after(253_402_300_800)).verdict, Verdict::Wrong);
    }
}
