//! A directory of models by name, which users and processes may share.
//!
//! `names/NAME.json` says what a name stands for; `hub/OWNER/REPO/COMMIT/` has what was downloaded. Names change under
//! the lock `names/.lock`, for moments. A download holds `hub/.lock` together with others as long as it takes, so that
//! nobody clears away what it is going to name.

mod earlier;
mod files;
mod pull;

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    Hub, Kind, Manifest, ModelName, ModelSource, ShelfError, ShelfFile, alike::suggestion, disk,
    manifest::HUB_DIRECTORY, source::HubSpec,
};

/// Names that an error lists at most.
const NAMES_TOLD: usize = 20;

/// Models by name.
#[derive(Debug, Clone)]
pub struct Shelf {
    dir: PathBuf,
    hub: Hub,
}

/// All names of a shelf.
#[derive(Debug, Default)]
pub struct Listing {
    /// In the order of the alphabet.
    pub manifests: Vec<Manifest>,
    /// Manifests that cannot be read, and why; their names are found by nobody.
    pub unreadable: Vec<ShelfError>,
}

impl Listing {
    fn names(&self) -> Vec<&str> {
        self.manifests.iter().map(|manifest| manifest.name.as_str()).collect()
    }
}

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files that no name uses any more.
    pub files: Vec<PathBuf>,
    /// Their bytes.
    pub bytes: u64,
    /// Whether downloaded files were left alone because a manifest that cannot be read may use them.
    pub is_partial: bool,
}

impl Shelf {
    /// The shelf in a directory, which is made when something is put there; downloads come from [`Hub::from_env`].
    pub fn open(dir: &Path) -> Shelf {
        Shelf { dir: dir.to_owned(), hub: Hub::from_env() }
    }

    /// The same with another hub.
    pub fn with_hub(self, hub: Hub) -> Shelf {
        Shelf { hub, ..self }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All names and what they stand for.
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

    /// What a name stands for. Its files were there when it was added; [`Shelf::path`] says whether they still are.
    pub fn find(&self, name: &str) -> Result<Manifest, ShelfError> {
        let found = self.read(&name.parse()?)?;
        found.ok_or_else(|| ShelfError::UnknownName { name: name.to_owned(), known: self.names_told(name) })
    }

    /// The names there are, as a sentence for an error about one that is not there: those like it first.
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

    /// The path of what a manifest stands for, whose files are there with the sizes that it says.
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

    /// A model of this source that was downloaded before, under whatever name.
    pub fn find_source(&self, spec: &HubSpec) -> Result<Option<Manifest>, ShelfError> {
        let is_it =
            |manifest: &Manifest| matches!(&manifest.source, ModelSource::Hub(found) if found == spec);
        Ok(self.list()?.manifests.into_iter().find(is_it))
    }

    /// Gives a name to a model or adapter where it is: a GGUF file, with the other files of a split one, or a Hugging
    /// Face directory. Its files stay their owner's: they are never removed.
    pub fn add(&self, path: &Path, name: &ModelName) -> Result<Manifest, ShelfError> {
        let path = fs::canonicalize(path).map_err(|error| self.not_there(path, error))?;
        let not_a_model =
            |reason: &str| ShelfError::NotAModel { path: path.clone(), reason: reason.to_owned() };
        if fs::canonicalize(&self.dir).is_ok_and(|dir| path.starts_with(dir)) {
            return Err(not_a_model("it is a file of the shelf; kvik cp gives it another name"));
        }
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

    /// Gives a model a second name. The files are shared; they are there as long as one of the names is.
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
        // One that cannot be read can be removed; which files were its, nobody knows.
        let manifest = match Manifest::read(&path) {
            Ok(None) => {
                let (name, known) = (name.to_string(), self.names_told(name.as_str()));
                return Err(ShelfError::UnknownName { name, known });
            }
            Ok(manifest) => manifest,
            Err(ShelfError::BadManifest { .. }) => None,
            Err(error) => return Err(error),
        };
        // First the name: whatever happens to the files then, nobody finds half a model.
        disk::remove(&path).map_err(ShelfError::io(&path))?;
        disk::sync_directory_of(&path).map_err(ShelfError::io(&path))?;
        manifest.map_or(Ok(Removed::default()), |manifest| self.remove_unused(&manifest))
    }

    /// Why a path cannot be added. One that is not there may be meant for a name, or for a repository of the hub.
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
        let meant = suggestion(&text, &self.list().unwrap_or_default().names());
        let remedy = if meant.is_empty() { hub } else { format!("{meant}That is here by its name; {hub}") };
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
        Manifest::read(&self.manifest_path(name))
    }

    /// Writes a manifest; the caller holds the lock of names.
    fn write(&self, manifest: &Manifest) -> Result<(), ShelfError> {
        let path = self.manifest_path(&manifest.name);
        let text =
            manifest.to_json().map_err(|reason| ShelfError::BadManifest { path: path.clone(), reason })?;
        disk::replace(&path, &self.names_dir().join(".new"), &text).map_err(ShelfError::io(&path))
    }

    /// Refuses to take a name from a model of another source.
    fn check_owner(&self, name: &ModelName, source: &ModelSource) -> Result<(), ShelfError> {
        let Some(owner) = self.read(name)? else { return Ok(()) };
        let is_same = match (&owner.source, source) {
            (ModelSource::Hub(owner), ModelSource::Hub(new)) => owner.is_same_model(new),
            (owner, new) => owner == new,
        };
        let (name, origin) = (name.to_string(), owner.source.to_string());
        if is_same { Ok(()) } else { Err(ShelfError::NameTaken { name, origin }) }
    }

    /// Waits for the lock under which names change.
    fn lock_names(&self) -> Result<File, ShelfError> {
        let file = open_lock(&self.names_dir())?;
        file.lock().map_err(ShelfError::io(&self.names_dir()))?;
        Ok(file)
    }

    /// Removes the files of a manifest that is gone and that no other uses. The caller holds the lock of names.
    fn remove_unused(&self, gone: &Manifest) -> Result<Removed, ShelfError> {
        let mut removed = Removed::default();
        if !gone.is_downloaded() {
            return Ok(removed);
        }
        let listing = self.list()?;
        if !listing.unreadable.is_empty() {
            return Ok(Removed { is_partial: true, ..removed });
        }
        let used = used(&listing);
        for file in gone.files.iter().filter(|file| !used.contains(file.path.as_str())) {
            let path = self.dir.join(&file.path);
            if self.is_really_inside(&path) && fs::remove_file(&path).is_ok() {
                removed.bytes += file.size;
                self.remove_empty_parents(&path);
                removed.files.push(path);
            }
        }
        Ok(removed)
    }

    /// Whether a file of the directory of downloads is there without a link that leads out of it: another user of a
    /// shared shelf could have put one.
    fn is_really_inside(&self, path: &Path) -> bool {
        let hub = fs::canonicalize(self.hub_dir());
        let parent = path.parent().map(fs::canonicalize);
        matches!((hub, parent), (Ok(hub), Some(Ok(parent))) if parent.starts_with(&hub))
    }

    fn remove_empty_parents(&self, path: &Path) {
        let hub = self.hub_dir();
        let parents = path.ancestors().skip(1).take_while(|parent| *parent != hub);
        // The first that is not empty ends it.
        let _ = parents.map(fs::remove_dir).find(Result::is_err);
    }
}

/// The paths of all files that names use.
fn used(listing: &Listing) -> HashSet<&str> {
    let files = listing.manifests.iter().flat_map(|manifest| &manifest.files);
    files.map(|file| file.path.as_str()).collect()
}

/// The file `.lock` of a directory, which is made if need be.
fn open_lock(dir: &Path) -> Result<File, ShelfError> {
    let path = dir.join(".lock");
    disk::create_directory(dir).map_err(ShelfError::io(dir))?;
    disk::open_to_lock(&path).map_err(ShelfError::io(&path))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
