//! Parts of the state that are long and seldom change: they are written down once, and named then.
//!
//! ```text
//! state     … tenant 7: [place of its live map] … client 3: [places of what it has not heard] …     written at each event
//!                          │                                   │
//! store     ───────────────┴──────────────────┬────────────────┴───                                 written when one changes
//! ```
//! A [`Kept`] is used like what it holds. When it is changed it forgets its place, so it is written anew. Before the state is
//! written all of its parts are [kept](Keep::keep), and after it was read all are [loaded](Keep::load).

#![forbid(unsafe_code)]

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use std::ops::{Deref, DerefMut};

/// Where a part lies in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The first byte.
    pub at: u64,
    /// So many bytes.
    pub bytes: u32,
}

/// Why a part cannot be kept or loaded.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("the state file: {0}")]
    System(#[from] std::io::Error),
    /// It cannot be put into bytes, or not be read from them.
    #[error("a part of the state cannot be written or read: {0}")]
    Codec(#[from] postcard::Error),
    /// There is no room for it.
    #[error("parts of {0} bytes are too long to be written down")]
    TooLong(u64),
    /// It names a place outside of the store.
    #[error("a part of the state lies nowhere")]
    Nowhere,
}

/// Where parts lie.
pub trait Store {
    /// Whether what lies there stays there. If not it is to be put in anew.
    fn has(&self, place: Place) -> bool;
    /// Puts in what `write` appends to the bytes that it is given.
    fn put(
        &mut self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>, postcard::Error>,
    ) -> Result<Place, StoreError>;
    /// The bytes that lie there.
    fn get(&self, place: Place) -> Result<Vec<u8>, StoreError>;
}

/// A part of the state.
pub trait Keep {
    /// Puts it into the store, if it does not lie there.
    fn keep(&mut self, store: &mut dyn Store) -> Result<(), StoreError>;
    /// Takes it from where it says that it lies.
    fn load(&mut self, store: &dyn Store) -> Result<(), StoreError>;
}

/// Something of which the state has only the [`Place`]. Between reading and loading it is empty.
#[derive(Clone, Debug, Default)]
pub struct Kept<T> {
    value: T,
    /// `None`: it was changed.
    place: Option<Place>,
}

impl<T> Kept<T> {
    /// Not put anywhere yet.
    pub fn new(value: T) -> Self {
        Self { value, place: None }
    }
}

impl<T> From<T> for Kept<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.place = None;
        &mut self.value
    }
}

impl<T: PartialEq> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Kept<T> {}

impl<T> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.place.ok_or_else(|| S::Error::custom("a part was not kept"))?.serialize(serializer)
    }
}

impl<'de, T: Default> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { value: T::default(), place: Some(Place::deserialize(deserializer)?) })
    }
}

impl<T: Serialize + DeserializeOwned> Keep for Kept<T> {
    fn keep(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        if self.place.is_none_or(|place| !store.has(place)) {
            self.place = Some(store.put(&mut |text| postcard::to_extend(&self.value, text))?);
        }
        Ok(())
    }

    fn load(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let place = self.place.ok_or(StoreError::Nowhere)?;
        self.value = postcard::from_bytes(&store.get(place)?)?;
        Ok(())
    }
}

/// A store in memory.
impl Store for Vec<u8> {
    fn has(&self, place: Place) -> bool {
        place.at + u64::from(place.bytes) <= self.len() as u64
    }

    fn put(
        &mut self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>, postcard::Error>,
    ) -> Result<Place, StoreError> {
        let at = self.len();
        *self = write(std::mem::take(self))?;
        let bytes = self.len() - at;
        Ok(Place { at: at as u64, bytes: bytes.try_into().map_err(|_| StoreError::TooLong(bytes as u64))? })
    }

    fn get(&self, place: Place) -> Result<Vec<u8>, StoreError> {
        let from = place.at as usize;
        self.as_slice().get(from..from + place.bytes as usize).map(<[u8]>::to_vec).ok_or(StoreError::Nowhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As another manager reads it.
    fn copied(part: &Kept<Vec<u64>>, store: &Vec<u8>) -> Kept<Vec<u64>> {
        let text = postcard::to_stdvec(part).unwrap();
        let mut copy: Kept<Vec<u64>> = postcard::from_bytes(&text).unwrap();
        assert!(copy.is_empty());
        copy.load(store).unwrap();
        copy
    }

    #[test]
    fn what_has_not_changed_is_put_in_once() {
        let (mut store, mut part) = (Vec::new(), Kept::new(vec![7u64; 100]));
        assert!(postcard::to_stdvec(&part).is_err(), "it lies nowhere");
        part.keep(&mut store).unwrap();
        let bytes = store.len();
        part.keep(&mut store).unwrap();
        assert_eq!(part.iter().sum::<u64>(), 700);
        part.keep(&mut store).unwrap();
        assert_eq!(store.len(), bytes);
        assert_eq!(copied(&part, &store), part);
    }

    #[test]
    fn what_was_changed_or_does_not_stay_is_put_in_anew() {
        let (mut store, mut part) = (Vec::new(), Kept::new(vec![7u64; 100]));
        part.keep(&mut store).unwrap();
        part.push(8);
        part.keep(&mut store).unwrap();
        assert_eq!(copied(&part, &store).len(), 101);
        store.clear();
        part.keep(&mut store).unwrap();
        assert!(part.place.is_some_and(|place| store.has(place)));
        assert_eq!(copied(&part, &store), part);
    }

    #[test]
    fn what_lies_nowhere_is_not_loaded() {
        let mut part: Kept<Vec<u64>> = Kept::default();
        assert!(matches!(part.load(&Vec::new()), Err(StoreError::Nowhere)));
        part.place = Some(Place { at: 1, bytes: 3 });
        assert!(matches!(part.load(&Vec::new()), Err(StoreError::Nowhere)));
    }
}
