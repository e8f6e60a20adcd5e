//! Formats of strings as patterns.

use super::datetime;

const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
/// A local part without quotation marks, as in RFC 5321.
const LOCAL: &str = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+(?:\.[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+)*";
/// A character of a path, as in RFC 3986.
const PATH: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";
const CLOCK: &str = "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";

/// The pattern of a format; `None` if the format is unknown.
pub(super) fn pattern(format: &str) -> Option<String> {
    let form = match format {
        "uuid" | "uuid1" | "uuid3" | "uuid4" | "uuid5" => {
            "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".to_owned()
        }
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "hostname" => hostname(),
        "email" => format!(r"{LOCAL}@(?:{}|\[{}\])", hostname(), ipv4()),
        "duration" => duration(),
        "uri" | "url" => uri(),
        _ => return datetime::pattern(format),
    };
    Some(format!("^(?:{form})$"))
}

fn ipv4() -> String {
    format!(r"(?:{OCTET}\.){{3}}{OCTET}")
}

fn hostname() -> String {
    format!(r"{LABEL}(?:\.{LABEL})*")
}

/// Eight groups, of which one run of zeros may be omitted.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut ways = vec![format!("(?:{group}:){{7}}{group}")];
    for before in 0..=6 {
        let head = match before {
            0 => String::new(),
            1 => group.to_owned(),
            _ => format!("{group}(?::{group}){{0,{}}}", before - 1),
        };
        let after = 6 - before;
        let tail = match after {
            0 => format!("(?:{group})?"),
            _ => format!("(?:{group}(?::{group}){{0,{after}}})?"),
        };
        ways.push(format!("{head}::{tail}"));
    }
    ways.join("|")
}

fn duration() -> String {
    let date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
    format!("P(?:{date}(?:T{CLOCK})?|T{CLOCK}|[0-9]+W)")
}

fn uri() -> String {
    let user = r"(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@)?";
    let host = r"(?:\[[0-9a-fA-Fv:.]+\]|(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*)";
    let authority = format!("//{user}{host}(?::[0-9]*)?(?:/{PATH}*)*");
    let path = format!("/?(?:{PATH}+(?:/{PATH}*)*)?");
    let rest = format!("(?:{PATH}|[/?])*");
    format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{authority}|{path})(?:\?{rest})?(?:#{rest})?")
}

#[cfg(test)]
mod tests {
    use super::super::pattern_matcher;

    #[test]
    fn formats_are_those_of_their_standards() {
        for (format, right, wrong) in [
            (
                "uuid",
                &["123e4567-e89b-12d3-a456-426614174000"][..],
                &["123e4567e89b12d3a456426614174000", ""][..],
            ),
            ("ipv4", &["0.0.0.0", "192.168.1.255"], &["1.2.3", "256.1.1.1", "1.2.3.4.", "01.2.3.4"]),
            (
                "ipv6",
                &["::", "::1", "1::", "2001:db8::8:800:200c:417a", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6::8"],
                &["1:2:3", "1:::2", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9"],
            ),
            ("hostname", &["a", "example.com", "a-b.c"], &["", "-a", "a-", "a..b"]),
            ("email", &["a@b.c", "a.b+c@example.org", "a@[1.2.3.4]"], &["a", "@b", "a@", ".a@b", "a b@c"]),
            ("duration", &["P1Y2M3DT4H5M6S", "PT5M", "P3W", "P1D"], &["P", "PT", "1D", "P1S"]),
            (
                "uri",
                &[
                    "https://example.com/a?b=c#d",
                    "mailto:a@b.c",
                    "urn:isbn:1",
                    "http://[::1]:80/",
                    "file:///x",
                ],
                &["example.com", "//a/b", "https://a b", ""],
            ),
            ("date", &["2024-02-29"], &["2023-02-29"]),
        ] {
            let pattern = super::pattern(format).unwrap();
            let matches = pattern_matcher(&pattern);
            for (texts, expect) in [(right, true), (wrong, false)] {
                for text in texts {
                    assert_eq!(matches(text), Some(expect), "{format}: {text}");
                }
            }
        }
        assert_eq!(super::pattern("password"), None);
    }
}
