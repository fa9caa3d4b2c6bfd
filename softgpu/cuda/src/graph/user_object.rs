//! User objects: things of the program that live as long as somebody holds a reference: the program,
//! or graphs. The program's function ends one when the last reference goes, on a thread of its own.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUhostFn, CUresult, CUuserObject};
use parking_lot::Mutex;

use super::{INVALID, find};
use crate::abi::{Answer, HostMut, Out};
use crate::crash;
use crate::registry::Registry;

const NO_DESTRUCTOR_SYNC: u32 = 1;
const MOVE: u32 = 1;

/// An object, alive as long as somebody refers to it.
pub struct UserObject {
    handle: usize,
    data: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
}

/// The references that the program holds.
struct Held {
    object: Arc<UserObject>,
    references: Mutex<u32>,
}

/// The references that a graph holds.
#[derive(Clone, Default)]
pub struct References(Vec<(Arc<UserObject>, u32)>);

static OBJECTS: Registry<Held> = Registry::new();

impl Drop for UserObject {
    fn drop(&mut self) {
        let (data, destroy) = (self.data, self.destroy);
        let end = move || {
            // SAFETY: the program passed the function to be called once with this argument.
            unsafe { destroy(data as *mut c_void) }
        };
        // Without a thread the object is never ended, which nobody can tell from "not yet".
        let _ = crash::start_thread("softgpu-objects", end);
    }
}

impl References {
    fn add(&mut self, object: Arc<UserObject>, count: u32) {
        self.0.push((object, count));
    }

    fn remove(&mut self, object: &UserObject, count: u32) -> Answer {
        let mut left = count;
        for (_, held) in self.0.iter_mut().filter(|(of, _)| of.handle == object.handle) {
            let gone = left.min(*held);
            (*held, left) = (*held - gone, left - gone);
        }
        self.0.retain(|(_, held)| *held > 0);
        if left == 0 { Ok(()) } else { Err(INVALID) }
    }
}

fn find_held(object: CUuserObject) -> Answer<Arc<Held>> {
    OBJECTS.get(object as usize).ok_or(INVALID)
}

fn check(count: u32) -> Answer {
    if count == 0 || count > i32::MAX.unsigned_abs() { Err(INVALID) } else { Ok(()) }
}

/// Takes references from the program; with the last its handle ends.
fn take(held: &Held, count: u32) -> Answer {
    let mut references = held.references.lock();
    *references = references.checked_sub(count).ok_or(INVALID)?;
    if *references == 0 {
        drop(OBJECTS.remove(held.object.handle));
    }
    Ok(())
}

/// `cuUserObjectCreate`
pub fn create(out: Out<CUuserObject>, data: HostMut, destroy: CUhostFn, count: u32, flags: u32) -> Answer {
    check(count)?;
    let destroy = destroy.ok_or(INVALID)?;
    if flags != NO_DESTRUCTOR_SYNC {
        return Err(INVALID);
    }
    let held = OBJECTS.add(|handle| Held {
        object: Arc::new(UserObject { handle, data: data.0, destroy }),
        references: Mutex::new(count),
    });
    out.set(held.object.handle as CUuserObject);
    Ok(())
}

/// `cuUserObjectRetain`
pub fn retain(object: CUuserObject, count: u32) -> Answer {
    check(count)?;
    let held = find_held(object)?;
    *held.references.lock() += count;
    Ok(())
}

/// `cuUserObjectRelease`
pub fn release(object: CUuserObject, count: u32) -> Answer {
    check(count)?;
    take(&*find_held(object)?, count)
}

/// `cuGraphRetainUserObject`: new references for the graph, or some of the program's.
pub fn retain_for_graph(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) -> Answer {
    check(count)?;
    let (graph, held) = (find(graph)?, find_held(object)?);
    match flags {
        0 => {}
        MOVE => take(&held, count)?,
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    graph.objects.lock().add(held.object.clone(), count);
    Ok(())
}

/// `cuGraphReleaseUserObject`
pub fn release_of_graph(graph: CUgraph, object: CUuserObject, count: u32) -> Answer {
    check(count)?;
    let graph = find(graph)?;
    let held = graph.objects.lock().0.iter().find(|(of, _)| of.handle == object as usize).cloned();
    let (object, _) = held.ok_or(INVALID)?;
    graph.objects.lock().remove(&object, count)
}
