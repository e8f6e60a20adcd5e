//! The web page: the files of `crates/kvik-server/page`, embedded in the binary.
//!
//! The page contains nothing secret, so it is served without a key, and also while the model loads. Its data comes from
//! the API, with the key that the user enters.

use std::borrow::Cow;

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use rust_embed::RustEmbed;

use crate::http::{error::ApiError, tagged::Tagged};

/// Path of the page.
pub(crate) const ROOT: &str = "/";
/// Path of the page's other files.
pub(crate) const FILES: &str = "/page/{*path}";

const INDEX: &str = "index.html";

/// Extensions of the page's files, and their content types.
const KINDS: [(&str, &str); 7] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("json", "application/json"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("ico", "image/x-icon"),
];

/// Content security policy: scripts, styles and data come only from this server, and only its files are executed, so
/// that text written by a model is never run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(RustEmbed)]
#[folder = "page"]
struct Embedded;

/// Whether a path belongs to the page.
pub(crate) fn has(path: &str) -> bool {
    path == ROOT || path.starts_with("/page/")
}

/// `GET /`
pub(crate) async fn index(headers: HeaderMap) -> Response {
    answer(INDEX, &headers)
}

/// `GET /page/{path}`
pub(crate) async fn file(Path(path): Path<String>, headers: HeaderMap) -> Response {
    answer(&path, &headers)
}

fn answer(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = find(path) else {
        let message = format!("the page has no file {path:?}");
        return ApiError::new(StatusCode::NOT_FOUND, Some("unknown_file"), message).into_response();
    };
    let about = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer")),
    ];
    (about, file.answer(headers)).into_response()
}

fn find(path: &str) -> Option<Tagged> {
    let (_, ending) = path.rsplit_once('.')?;
    let (_, kind) = KINDS.into_iter().find(|(known, _)| *known == ending)?;
    let (bytes, hash) = read(path)?;
    Some(Tagged::new(kind, bytes, &hash))
}

/// The bytes of a file and their SHA-256.
fn read(path: &str) -> Option<(Cow<'static, [u8]>, [u8; 32])> {
    // During development a change is visible without a build.
    #[cfg(debug_assertions)]
    if let Some(folder) = std::env::var_os("KVIK_PAGE_DIR") {
        let bytes = read_from(folder.as_ref(), path)?;
        let hash = <sha2::Sha256 as sha2::Digest>::digest(&bytes).into();
        return Some((bytes.into(), hash));
    }
    let file = Embedded::get(path)?;
    Some((file.data, file.metadata.sha256_hash()))
}

/// A file below `folder`, never outside it.
#[cfg(debug_assertions)]
fn read_from(folder: &std::path::Path, path: &str) -> Option<Vec<u8>> {
    use std::path::{Component, Path};
    let stays = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    stays.then(|| std::fs::read(folder.join(path)).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_has_a_kind() {
        let files: Vec<_> = Embedded::iter().collect();
        assert!(files.iter().any(|path| path == INDEX));
        for path in files {
            assert!(find(&path).is_some(), "{path} has an ending that no browser is told of");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_path_never_leaves_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("page");
        std::fs::create_dir_all(folder.join("parts")).unwrap();
        std::fs::write(root.path().join("secret.js"), "secret").unwrap();
        std::fs::write(folder.join("parts/a.js"), "a").unwrap();
        assert_eq!(read_from(&folder, "parts/a.js").as_deref(), Some(&b"a"[..]));
        let outside = root.path().join("secret.js");
        for path in
            ["../secret.js", "parts/../../secret.js", "/../secret.js", outside.to_str().unwrap(), "", "parts"]
        {
            assert_eq!(read_from(&folder, path), None, "{path}");
        }
    }
}
