//! URLs of the hub: path encoding, origins and redirects.

/// Encodes everything in a path except letters, digits and `-._~/` as `%XX`.
pub(super) fn encoded(path: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().fold(String::with_capacity(path.len()), |mut out, byte| {
        match keep(byte) {
            true => out.push(byte.into()),
            false => out += &format!("%{byte:02X}"),
        }
        out
    })
}

/// Scheme and authority of a URL.
pub(super) fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |i| i + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |i| authority + i);
    &url[..end]
}

/// The target of a redirect from `url`: another URL, or another path of the same host; never from https to http.
pub(super) fn redirected(url: &str, location: &str) -> Option<String> {
    let secure = url.starts_with("https://");
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(format!("{}{location}", origin(url)));
    }
    let followed = location.starts_with("https://") || (location.starts_with("http://") && !secure);
    followed.then(|| location.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("sub/m-Q8_0.gguf"), "sub/m-Q8_0.gguf");
        assert_eq!(encoded("a b+ä@x"), "a%20b%2B%C3%A4%40x");
    }

    #[test]
    fn redirects_stay_as_secure_as_they_were() {
        let check = |url: &str, location: &str, expect: Option<&str>| {
            assert_eq!(redirected(url, location).as_deref(), expect, "{url} to {location}");
        };
        check("https://a/x?y", "/z", Some("https://a/z"));
        check("https://a/x", "https://b/z", Some("https://b/z"));
        check("http://a/x", "http://b/z", Some("http://b/z"));
        check("https://a/x", "http://b/z", None);
        check("https://a/x", "//b/z", None);
        check("https://a/x", "file:///etc/passwd", None);
        check("https://a/x", "", None);
        assert_eq!(origin("https://a:1/b?c"), "https://a:1");
        assert_eq!(origin("https://a?c"), "https://a");
    }
}
