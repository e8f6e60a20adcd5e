//! A directory of models by name, which users and processes may share.
//!
//! `names/NAME.json` is the manifest of a name; `hub/OWNER/REPO/COMMIT/` has downloaded files. Names change under
//! the lock `names/.lock`, which is held briefly. A download holds `hub/.lock` as a shared lock for its whole
//! duration, so that no process removes the files before they are named.

mod default;
mod earlier;
mod files;
mod pull;
mod used;

pub use default::DefaultModel;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    Hub, Kind, Manifest, ModelName, ModelSource, ShelfError, ShelfFile, ShortName, alike::suggestion, disk,
    manifest::HUB_DIRECTORY, source::HubSpec,
};
use used::Used;

/// Maximum number of names that an error lists.
const NAMES_TOLD: usize = 20;

/// Models by name.
#[derive(Debug, Clone)]
pub struct Shelf {
    dir: PathBuf,
    hub: Hub,
    /// Bytes that a pulled model may take where its source leaves the file open.
    memory_bytes: Option<u64>,
}

/// All manifests of a shelf.
#[derive(Debug, Default)]
pub struct Listing {
    /// Manifests in alphabetical order.
    pub manifests: Vec<Manifest>,
    /// Unreadable manifests and the reasons; their names cannot be found.
    pub unreadable: Vec<ShelfError>,
}

impl Listing {
    fn names(&self) -> Vec<&str> {
        self.manifests.iter().map(|manifest| manifest.name.as_str()).collect()
    }
}

/// The result of a removal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Removed files, which no name used any more.
    pub files: Vec<PathBuf>,
    /// Their total size.
    pub bytes: u64,
    /// True if downloaded files were kept because an unreadable manifest may use them.
    pub is_partial: bool,
}

impl Shelf {
    /// The shelf in a directory, which is created when something is put there; downloads come from [`Hub::from_env`].
    pub fn open(dir: &Path) -> Shelf {
        Shelf { dir: dir.to_owned(), hub: Hub::from_env(), memory_bytes: None }
    }

    /// The shelf with another hub.
    pub fn with_hub(self, hub: Hub) -> Shelf {
        Shelf { hub, ..self }
    }

    /// The shelf whose pulls choose files of at most these bytes, where a source leaves the file open and there is one.
    pub fn with_memory(self, memory_bytes: Option<u64>) -> Shelf {
        Shelf { memory_bytes, ..self }
    }

    /// Maximum bytes of the files that pulls choose, if they are bounded.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lists all manifests.
    pub fn list(&self) -> Result<Listing, ShelfError> {
        let names = self.names_dir();
        let failed = ShelfError::io(&names);
        let entries = match fs::read_dir(&names) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Listing::default()),
            entries => entries.map_err(&failed)?,
        };
        let mut listing = Listing::default();
        for entry in entries {
            let path = entry.map_err(&failed)?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match Manifest::read(&path) {
                Ok(manifest) => listing.manifests.extend(manifest),
                Err(error) => listing.unreadable.push(error),
            }
        }
        listing.manifests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    /// Finds the manifest of a name. Its files existed when it was added; [`Shelf::path`] checks whether they still
    /// do.
    pub fn find(&self, name: &str) -> Result<Manifest, ShelfError> {
        let found = self.read(&name.parse()?)?;
        found.ok_or_else(|| ShelfError::UnknownName { name: name.to_owned(), known: self.names_told(name) })
    }

    /// The existing names, as a sentence for an error about an unknown one: similar names first.
    pub fn names_told(&self, wanted: &str) -> String {
        let listing = self.list().unwrap_or_default();
        let names = listing.names();
        let there_are = match names.len() {
            0 => "there are no names yet: kvik pull fetches a model".to_owned(),
            count if count > NAMES_TOLD => {
                format!("there are {} and {} more", names[..NAMES_TOLD].join(", "), count - NAMES_TOLD)
            }
            _ => format!("there are {}", names.join(", ")),
        };
        suggestion(wanted, &names) + &there_are
    }

    /// The path to open for a manifest, after checking that its files exist with the right sizes.
    pub fn path(&self, manifest: &Manifest) -> Result<PathBuf, ShelfError> {
        let lacks = |file: &&ShelfFile| {
            let found = fs::metadata(self.dir.join(&file.path));
            !found.is_ok_and(|found| found.is_file() && found.len() == file.size)
        };
        let Some(file) = manifest.files.iter().find(lacks) else { return Ok(self.dir.join(&manifest.model)) };
        let name = manifest.name.to_string();
        let remedy = match manifest.is_downloaded() {
            true => format!("fetch it again: kvik pull {} --name {name}", manifest.source),
            false => format!("put it back, or remove the name: kvik rm {name}"),
        };
        Err(ShelfError::MissingFile { name, path: self.dir.join(&file.path), remedy })
    }

    /// Finds a downloaded model of this source, under any name.
    pub fn find_source(&self, spec: &HubSpec) -> Result<Option<Manifest>, ShelfError> {
        let is_it =
            |manifest: &Manifest| matches!(&manifest.source, ModelSource::Hub(found) if found == spec);
        Ok(self.list()?.manifests.into_iter().find(is_it))
    }

    /// Gives a name to a model or adapter in place: a GGUF file, with the other files of a split one, or a Hugging
    /// Face directory. The shelf does not own its files: they are never removed.
    pub fn add(&self, path: &Path, name: &ModelName) -> Result<Manifest, ShelfError> {
        let real = fs::canonicalize(path).map_err(|error| self.not_there(path, error))?;
        if fs::canonicalize(&self.dir).is_ok_and(|dir| real.starts_with(dir)) {
            let reason = "it is a file of the shelf; kvik cp gives it another name".to_owned();
            return Err(ShelfError::NotAModel { path: real, reason });
        }
        let path = files::own_path(path, real).map_err(ShelfError::io(path))?;
        let (model, files) = files::at(&path)?;
        let manifest = Manifest {
            name: name.clone(),
            kind: Kind::of(&path),
            source: ModelSource::Path(path.clone()),
            revision: None,
            added_s: now_s(),
            model,
            files,
        };
        let _lock = self.lock_names()?;
        self.check_owner(&manifest.name, &manifest.source)?;
        self.write(&manifest)?;
        Ok(manifest)
    }

    /// Gives a model a second name. The files are shared; they are kept as long as one of the names exists.
    pub fn copy(&self, from: &str, to: &ModelName) -> Result<Manifest, ShelfError> {
        let _lock = self.lock_names()?;
        let manifest = Manifest { name: to.clone(), added_s: now_s(), ..self.find(from)? };
        self.check_owner(to, &manifest.source)?;
        self.write(&manifest)?;
        Ok(manifest)
    }

    /// Removes a name, then the downloaded files that no other name uses.
    pub fn remove(&self, name: &str) -> Result<Removed, ShelfError> {
        let name: ModelName = name.parse()?;
        let _lock = self.lock_names()?;
        let path = self.manifest_path(&name);
        // An unreadable manifest can be removed, but its files are unknown.
        let manifest = match self.read(&name) {
            Ok(None) => {
                let (name, known) = (name.to_string(), self.names_told(name.as_str()));
                return Err(ShelfError::UnknownName { name, known });
            }
            Ok(manifest) => manifest,
            Err(ShelfError::BadManifest { .. }) => None,
            Err(error) => return Err(error),
        };
        // The name is removed first: whatever happens to the files then, a partial model is never found.
        disk::remove(&path).map_err(ShelfError::io(&path))?;
        disk::sync_directory_of(&path).map_err(ShelfError::io(&path))?;
        manifest.map_or(Ok(Removed::default()), |manifest| self.remove_unused(&manifest))
    }

    /// Explains why a path cannot be added. A missing one may be meant as a name, or as a repository of the hub.
    fn not_there(&self, path: &Path, error: io::Error) -> ShelfError {
        if error.kind() != io::ErrorKind::NotFound {
            return ShelfError::io(path)(error);
        }
        let text = path.display().to_string();
        let of_hub = format!("hf:{text}").parse::<ModelSource>().ok().filter(|_| !text.ends_with(".gguf"));
        let hub = match of_hub {
            Some(source) => format!("the model of the Hugging Face hub is written {source}"),
            None => {
                "models of the Hugging Face hub are written hf:owner/repo, as hf:Qwen/Qwen3-0.6B-GGUF".into()
            }
        };
        let here = suggestion(&text, &self.list().unwrap_or_default().names());
        let short = suggestion(&text, &ShortName::all().iter().map(|row| row.name).collect::<Vec<_>>());
        let remedy = match (here.as_str(), short.as_str()) {
            ("", "") => hub,
            ("", short) => format!("{short}That is a short name of the hub; {hub}"),
            (here, _) => format!("{here}That is here by its name; {hub}"),
        };
        ShelfError::NoSuchPath { text, remedy }
    }

    fn names_dir(&self) -> PathBuf {
        self.dir.join("names")
    }

    fn hub_dir(&self) -> PathBuf {
        self.dir.join(HUB_DIRECTORY)
    }

    fn manifest_path(&self, name: &ModelName) -> PathBuf {
        self.names_dir().join(name.file_name())
    }

    fn read(&self, name: &ModelName) -> Result<Option<Manifest>, ShelfError> {
        Ok(self.at_path_of(name)?.filter(|found| found.name == *name))
    }

    /// The manifest in the file of a name. Where the file system takes upper and lower case for one, it may be that of
    /// another name.
    fn at_path_of(&self, name: &ModelName) -> Result<Option<Manifest>, ShelfError> {
        Manifest::read_in_any_case(&self.manifest_path(name))
    }

    /// Writes a manifest; the caller holds the lock on names.
    fn write(&self, manifest: &Manifest) -> Result<(), ShelfError> {
        let path = self.manifest_path(&manifest.name);
        let text =
            manifest.to_json().map_err(|reason| ShelfError::BadManifest { path: path.clone(), reason })?;
        disk::replace(&path, &self.names_dir().join(".new"), &text).map_err(ShelfError::io(&path))
    }

    /// Refuses to reassign a name that belongs to a model of another source, one whose file is that of another name, and a
    /// new one that means something else.
    fn check_owner(&self, name: &ModelName, source: &ModelSource) -> Result<(), ShelfError> {
        let Some(owner) = self.at_path_of(name)? else { return name.check_new() };
        let is_same_model = match (&owner.source, source) {
            (ModelSource::Hub(owner), ModelSource::Hub(new)) => owner.is_same_model(new),
            (owner, new) => owner == new,
        };
        if owner.name == *name && is_same_model {
            return Ok(());
        }
        Err(ShelfError::NameTaken { name: owner.name.to_string(), origin: owner.source.to_string() })
    }

    /// Waits for the lock on names.
    fn lock_names(&self) -> Result<File, ShelfError> {
        let file = open_lock(&self.names_dir())?;
        file.lock().map_err(ShelfError::io(&self.names_dir()))?;
        Ok(file)
    }

    /// Removes the files of a removed manifest that no other manifest uses. The caller holds the lock on names.
    fn remove_unused(&self, gone: &Manifest) -> Result<Removed, ShelfError> {
        let mut removed = Removed::default();
        if !gone.is_downloaded() {
            return Ok(removed);
        }
        let listing = self.list()?;
        if !listing.unreadable.is_empty() {
            return Ok(Removed { is_partial: true, ..removed });
        }
        let used = Used::of(&self.dir, &listing);
        for file in gone.files.iter().filter(|file| !used.has(&file.path)) {
            let path = self.dir.join(&file.path);
            if self.is_really_inside(&path) && fs::remove_file(&path).is_ok() {
                removed.bytes += file.size;
                self.remove_empty_parents(&path);
                removed.files.push(path);
            }
        }
        Ok(removed)
    }

    /// Returns whether a file is really inside the directory of downloads, that is, no symbolic link leads out:
    /// another user of a shared shelf could have placed one.
    fn is_really_inside(&self, path: &Path) -> bool {
        let hub = fs::canonicalize(self.hub_dir());
        let parent = path.parent().map(fs::canonicalize);
        matches!((hub, parent), (Ok(hub), Some(Ok(parent))) if parent.starts_with(&hub))
    }

    fn remove_empty_parents(&self, path: &Path) {
        let hub = self.hub_dir();
        let parents = path.ancestors().skip(1).take_while(|parent| *parent != hub);
        // Stops at the first directory that is not empty.
        let _ = parents.map(fs::remove_dir).find(Result::is_err);
    }
}

/// Opens the file `.lock` of a directory, which is created if need be.
fn open_lock(dir: &Path) -> Result<File, ShelfError> {
    let path = dir.join(".lock");
    disk::create_directory(dir).map_err(ShelfError::io(dir))?;
    disk::open_to_lock(&path).map_err(ShelfError::io(&path))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
