//! Descriptors that leave out what their task or a parent says (R2.3).
//!
//! ```text
//!   task: base 0x10000 ◄──────────┐ what nobody before it says
//!     parent 1: storage 64 × 64 ──┘◄── child of 1: offset (8, 0), size (4, 64)
//!     parent 2: child of 1, ◄───────── child of 2: offset (8, 8)
//!               size (16, 16)
//! ```
//!
//! A parent is a larger tensor, or a set of tensors: then it says what these have in common, and need not be
//! a region itself. Offsets and corners are relative to the reference point, the child's as the parent's: a child
//! lies inside its parent, partly outside, or beside it, as long as it lies in its storage. What counts is the
//! child's own region, whole; the parent's is not looked at.

#![forbid(unsafe_code)]

use super::descriptor::{Access, Descriptor, TensorId};
use super::form::{Axis, FormError, sides};
use super::region::{MOST_DIMENSIONS, Region};
use std::fmt;

/// A description in which a parameter may be left out: then the parent's is meant, or its parent's, and so on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outline<'a> {
    /// Whose parameters fill in.
    pub parent: Option<TensorId>,
    /// Address of the reference point; at last the task's.
    pub base: Option<u64>,
    /// Bytes of an element.
    pub element: Option<u64>,
    /// Where the elements lie.
    pub shape: Shape<'a>,
}

/// Where the elements of an outline lie, dimensions slowest first.
#[derive(Clone, Copy, Debug, Default)]
pub enum Shape<'a> {
    /// Where the parent's do.
    #[default]
    Inherited,
    /// In a box ([`Region::in_storage`]). What an axis leaves out is that of the nearest parent with a box of as
    /// many dimensions.
    Box(&'a [Axis<Option<i64>>]),
    /// In a box between two corners ([`Region::between_corners`]), in the parent's storage.
    Corners([&'a [i64]; 2]),
    /// Where a mapping says ([`Region::mapping`]), its position 0 so many bytes from the reference point.
    Mapping {
        /// In bytes from the reference point.
        start: i64,
        /// In elements.
        sizes: &'a [i64],
        /// In bytes.
        strides: &'a [i64],
    },
    /// In a range ([`Region::range`]); it has no need of an element's size.
    Bytes {
        /// In bytes from the reference point.
        start: i64,
        /// How many.
        bytes: u64,
    },
}

/// A tensor, or a set of tensors, that others of its task refer to.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// What they refer to.
    pub id: TensorId,
    /// What they can leave out.
    pub outline: Outline<'a>,
}

/// A parameter of a description. Dimensions count from 0, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Address of the reference point.
    Base,
    /// Bytes of an element.
    Element,
    /// Where the elements lie.
    Shape,
    /// Size of the storage in a dimension.
    Storage(usize),
    /// Offset in a dimension.
    Offset(usize),
    /// Size in a dimension.
    Size(usize),
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Base => write!(f, "the base"),
            Parameter::Element => write!(f, "the element's size"),
            Parameter::Shape => write!(f, "the shape"),
            Parameter::Storage(dimension) => write!(f, "the storage's size in dimension {dimension}"),
            Parameter::Offset(dimension) => write!(f, "the offset in dimension {dimension}"),
            Parameter::Size(dimension) => write!(f, "the size in dimension {dimension}"),
        }
    }
}

/// Why an outline is of no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Nobody is called so.
    #[error("{0} is no parent of this task: list it among the task's parents")]
    UnknownParent(TensorId),
    /// Two are called so.
    #[error("two parents of this task are called {0}: give each its own identifier")]
    SameName(TensorId),
    /// A parent that is its own parent's parent.
    #[error("{0} is among its own parents: leave out one of the references")]
    Cycle(TensorId),
    /// Left out by all.
    #[error("{0} is left out, and neither a parent with as many dimensions nor the task gives it")]
    Missing(Parameter),
    /// All is there, but impossible.
    #[error(transparent)]
    Form(#[from] FormError),
}

/// What the descriptors of a task have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Task<'a> {
    base: Option<u64>,
    parents: &'a [Parent<'a>],
}

impl<'a> Task<'a> {
    /// A task whose base is agreed once (the environment parameter), or given in each descriptor, and its parents.
    pub fn new(base: Option<u64>, parents: &'a [Parent<'a>]) -> Result<Self, TaskError> {
        for (index, parent) in parents.iter().enumerate() {
            if parents[..index].iter().any(|earlier| earlier.id == parent.id) {
                return Err(TaskError::SameName(parent.id));
            }
        }
        Ok(Self { base, parents })
    }

    /// The region of an outline, completed by its parents and the task.
    pub fn region(&self, outline: &Outline<'a>) -> Result<Region, TaskError> {
        let mut whole = Whole::of(outline)?;
        let mut next = outline.parent;
        for _ in 0..=self.parents.len() {
            let Some(id) = next else { return whole.region(self.base) };
            let parent = self.parents.iter().find(|parent| parent.id == id);
            let parent = parent.ok_or(TaskError::UnknownParent(id))?;
            whole.complete(&parent.outline)?;
            next = parent.outline.parent;
        }
        Err(TaskError::Cycle(next.expect("more steps than parents")))
    }

    /// A descriptor of an outline's region.
    pub fn descriptor(&self, outline: &Outline<'a>, access: Access) -> Result<Descriptor, TaskError> {
        Ok(Descriptor::of(self.region(outline)?, access))
    }
}

/// An outline while it is completed: a box has its axes in `axes`.
struct Whole<'a> {
    base: Option<u64>,
    element: Option<u64>,
    shape: Shape<'a>,
    axes: Axes,
}

/// The axes of a box, as far as they are known; more than there may be are told when the region is made.
#[derive(Clone, Copy)]
struct Axes {
    known: [Axis<Option<i64>>; MOST_DIMENSIONS],
    count: usize,
}

impl<'a> Whole<'a> {
    fn of(outline: &Outline<'a>) -> Result<Self, FormError> {
        let Outline { base, element, shape, .. } = *outline;
        Ok(Self { base, element, shape, axes: Axes::of(&shape)? })
    }

    fn complete(&mut self, parent: &Outline<'a>) -> Result<(), FormError> {
        self.base = self.base.or(parent.base);
        self.element = self.element.or(parent.element);
        let axes = Axes::of(&parent.shape)?;
        match self.shape {
            Shape::Inherited => (self.shape, self.axes) = (parent.shape, axes),
            Shape::Box(_) | Shape::Corners(_) => self.axes.complete(&axes),
            Shape::Mapping { .. } | Shape::Bytes { .. } => (),
        }
        Ok(())
    }

    fn region(&self, agreed: Option<u64>) -> Result<Region, TaskError> {
        let base = self.base.or(agreed).ok_or(TaskError::Missing(Parameter::Base))?;
        let element = self.element.ok_or(TaskError::Missing(Parameter::Element));
        let from = |start| base.checked_add_signed(start).ok_or(FormError::Address { base });
        Ok(match self.shape {
            Shape::Inherited => return Err(TaskError::Missing(Parameter::Shape)),
            Shape::Box(_) | Shape::Corners(_) => self.axes.region(base, element?)?,
            Shape::Mapping { start, sizes, strides } => {
                Region::mapping(from(start)?, element?, sizes, strides)?
            }
            Shape::Bytes { start, bytes } => Region::range(from(start)?, bytes)?,
        })
    }
}

impl Axes {
    fn of(shape: &Shape<'_>) -> Result<Self, FormError> {
        let mut axes = Self { known: Default::default(), count: 0 };
        match shape {
            Shape::Box(known) => known.iter().for_each(|axis| axes.push(*axis)),
            Shape::Corners(corners) => sides(*corners)?.for_each(|(offset, size)| {
                axes.push(Axis { storage: None, offset: Some(offset), size: Some(size) });
            }),
            Shape::Inherited | Shape::Mapping { .. } | Shape::Bytes { .. } => (),
        }
        Ok(axes)
    }

    fn push(&mut self, axis: Axis<Option<i64>>) {
        if let Some(place) = self.known.get_mut(self.count) {
            *place = axis;
        }
        self.count += 1;
    }

    fn complete(&mut self, parent: &Axes) {
        if self.count != parent.count {
            return;
        }
        for (ours, theirs) in self.known.iter_mut().zip(&parent.known) {
            ours.storage = ours.storage.or(theirs.storage);
            ours.offset = ours.offset.or(theirs.offset);
            ours.size = ours.size.or(theirs.size);
        }
    }

    fn region(&self, base: u64, element: u64) -> Result<Region, TaskError> {
        let mut axes = [Axis::default(); MOST_DIMENSIONS];
        let known = self.known.get(..self.count).ok_or(FormError::Dimensions(self.count))?;
        for (dimension, (axis, known)) in axes.iter_mut().zip(known).enumerate() {
            let given = |value: Option<i64>, parameter: fn(usize) -> Parameter| {
                value.ok_or(TaskError::Missing(parameter(dimension)))
            };
            *axis = Axis {
                storage: given(known.storage, Parameter::Storage)?,
                offset: given(known.offset, Parameter::Offset)?,
                size: given(known.size, Parameter::Size)?,
            };
        }
        Ok(Region::in_storage(base, element, &axes[..self.count])?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlap::Overlap;
    use super::*;

    const LEFT_OUT: Axis<Option<i64>> = Axis { storage: None, offset: None, size: None };

    fn axis(storage: i64, offset: i64, size: i64) -> Axis<Option<i64>> {
        Axis { storage: Some(storage), offset: Some(offset), size: Some(size) }
    }

    fn child(parent: u64, shape: Shape<'_>) -> Outline<'_> {
        Outline { parent: Some(TensorId(parent)), shape, ..Outline::default() }
    }

    fn stored(base: u64, rows: (i64, i64), columns: (i64, i64)) -> Result<Region, TaskError> {
        let axis = |(offset, size)| Axis { storage: 64, offset, size };
        Ok(Region::in_storage(base, 4, &[axis(rows), axis(columns)])?)
    }

    #[test]
    fn what_a_child_leaves_out_is_its_parents_or_the_tasks() {
        let whole = [axis(64, 0, 64), axis(64, 0, 64)];
        let block =
            [Axis { size: Some(16), ..LEFT_OUT }, Axis { size: Some(8), offset: Some(3), ..LEFT_OUT }];
        let parents = [
            Parent {
                id: TensorId(1),
                outline: Outline { element: Some(4), shape: Shape::Box(&whole), ..Outline::default() },
            },
            Parent {
                id: TensorId(2),
                outline: Outline { base: Some(0x2000), ..child(1, Shape::Box(&block)) },
            },
            Parent {
                id: TensorId(3),
                outline: Outline { base: Some(0x3000), element: Some(2), ..Outline::default() },
            },
        ];
        let task = Task::new(Some(0x1000), &parents).unwrap();
        let rows = [Axis { offset: Some(8), ..LEFT_OUT }, LEFT_OUT];
        let table = [
            (child(1, Shape::Inherited), stored(0x1000, (0, 64), (0, 64))),
            (child(2, Shape::Inherited), stored(0x2000, (0, 16), (3, 8))),
            (child(2, Shape::Box(&rows)), stored(0x2000, (8, 16), (3, 8))),
            (Outline { base: Some(0x8000), ..child(1, Shape::Box(&block)) }, stored(0x8000, (0, 16), (3, 8))),
            (Outline { base: Some(0x9000), ..child(2, Shape::Inherited) }, stored(0x9000, (0, 16), (3, 8))),
            (
                Outline {
                    element: Some(1),
                    ..child(1, Shape::Mapping { start: 7, sizes: &[2], strides: &[9] })
                },
                Ok(Region::mapping(0x1007, 1, &[2], &[9]).unwrap()),
            ),
            (child(2, Shape::Corners([&[1, 2], &[3, 2]])), stored(0x2000, (1, 3), (2, 1))),
            (
                child(3, Shape::Mapping { start: -16, sizes: &[3], strides: &[-8] }),
                Ok(Region::mapping(0x2ff0, 2, &[3], &[-8]).unwrap()),
            ),
            (child(1, Shape::Bytes { start: 5, bytes: 7 }), Ok(Region::range(0x1005, 7).unwrap())),
            (
                Outline { shape: Shape::Bytes { start: 5, bytes: 7 }, ..Outline::default() },
                Ok(Region::range(0x1005, 7).unwrap()),
            ),
            (child(3, Shape::Box(&[])), Ok(Region::in_storage(0x3000, 2, &[]).unwrap())),
        ];
        for (outline, region) in table {
            assert_eq!(task.region(&outline), region, "{outline:?}");
        }
    }

    #[test]
    fn a_child_counts_with_its_own_region_whole() {
        let inner = [axis(64, 16, 16), axis(64, 16, 16)];
        let parents = [Parent {
            id: TensorId(1),
            outline: Outline { element: Some(4), shape: Shape::Box(&inner), ..Outline::default() },
        }];
        let task = Task::new(Some(0x1000), &parents).unwrap();
        let at = |offset| [Axis { offset: Some(offset), ..LEFT_OUT }, LEFT_OUT];
        let (inside, half, beside) = (at(16), at(24), at(32));
        let region = |axes| task.region(&child(1, Shape::Box(axes))).unwrap();
        let [inside, half, beside] = [&inside, &half, &beside].map(|axes| region(axes));
        assert_eq!(inside.overlap(&half), Overlap::Meets);
        assert_eq!(half.overlap(&beside), Overlap::Meets, "outside of the parent, too");
        assert_eq!(inside.overlap(&beside), Overlap::Apart);
        let outside = [Axis { offset: Some(56), ..LEFT_OUT }, LEFT_OUT];
        let told = task.region(&child(1, Shape::Box(&outside)));
        let error = FormError::Outside { dimension: 0, offset: 56, size: 16, storage: 64 };
        assert_eq!(told, Err(TaskError::Form(error)), "it leaves the storage");
    }

    #[test]
    fn incomplete_descriptions_are_refused_in_words() {
        let whole = [axis(64, 0, 64), axis(64, 0, 64)];
        let boxed = Outline { element: Some(4), shape: Shape::Box(&whole), ..Outline::default() };
        let parents = [
            Parent { id: TensorId(1), outline: boxed },
            Parent { id: TensorId(2), outline: child(3, Shape::Inherited) },
            Parent { id: TensorId(3), outline: child(2, Shape::Inherited) },
            Parent { id: TensorId(4), outline: child(4, Shape::Inherited) },
            Parent { id: TensorId(5), outline: child(9, Shape::Inherited) },
            Parent { id: TensorId(6), outline: Outline { base: Some(8), ..Outline::default() } },
        ];
        let task = Task::new(None, &parents).unwrap();
        let based = |outline| Outline { base: Some(8), ..outline };
        let (line, nine) = ([LEFT_OUT], [axis(1, 0, 1); 9]);
        let no_storage = [axis(1, 0, 1), Axis { offset: Some(0), size: Some(1), storage: None }];
        let no_offset = [Axis { offset: None, ..axis(1, 0, 1) }];
        let no_size = [Axis { size: None, ..axis(1, 0, 1) }];
        let of_4 = |shape| Outline { element: Some(4), ..child(6, shape) };
        let corners = Shape::Corners([&[0], &[0, 1]]);
        let table = [
            (child(9, Shape::Inherited), TaskError::UnknownParent(TensorId(9))),
            (based(child(5, Shape::Inherited)), TaskError::UnknownParent(TensorId(9))),
            (child(2, Shape::Inherited), TaskError::Cycle(TensorId(2))),
            (child(4, Shape::Inherited), TaskError::Cycle(TensorId(4))),
            (child(1, Shape::Inherited), TaskError::Missing(Parameter::Base)),
            (child(6, Shape::Box(&whole)), TaskError::Missing(Parameter::Element)),
            (of_4(Shape::Inherited), TaskError::Missing(Parameter::Shape)),
            (of_4(Shape::Box(&no_storage)), TaskError::Missing(Parameter::Storage(1))),
            (of_4(Shape::Box(&no_offset)), TaskError::Missing(Parameter::Offset(0))),
            (of_4(Shape::Box(&no_size)), TaskError::Missing(Parameter::Size(0))),
            (based(child(1, Shape::Box(&line))), TaskError::Missing(Parameter::Storage(0))),
            (of_4(Shape::Box(&nine)), TaskError::Form(FormError::Dimensions(9))),
            (of_4(corners), TaskError::Form(FormError::Lists(1, 2))),
            (of_4(Shape::Bytes { start: -9, bytes: 1 }), TaskError::Form(FormError::Address { base: 8 })),
        ];
        for (outline, expected) in table {
            let told = task.region(&outline);
            // Of a cycle, any member may be named.
            let is_cycle = matches!((&told, expected), (Err(TaskError::Cycle(_)), TaskError::Cycle(_)));
            assert!(is_cycle || told == Err(expected), "{outline:?}: {told:?}");
        }
        let twice = [parents[0], parents[5], parents[0]];
        assert_eq!(Task::new(None, &twice).unwrap_err(), TaskError::SameName(TensorId(1)));
        assert_eq!(
            TaskError::Missing(Parameter::Offset(1)).to_string(),
            "the offset in dimension 1 is left out, and neither a parent with as many dimensions nor the task gives it"
        );
    }
}
