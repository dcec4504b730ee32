"""A timeline as boxes: lanes of activities, coarsened to the number of boxes that can be drawn.

    Prepared, longest gaps
      -> LaneGroup   the lanes of a device or host: streams, ranges, frames, ops, calls
      -> LaneEvents  the events of one lane, in order and without overlap
      -> Drawable    all lanes, and counters (launches outstanding, memory, samples)
    Drawable.within(budget) -> Timeline: Levels of Boxes

      events   |-| |--| |-|       |----------|  |-||-|     ns, as recorded
      boxes    [   3 ev.   ]      [   1 ev.  ]  [2 ev]     neighbours shorter than a cell merge

    The first level is the whole recording. If its boxes stand for several events each, the
    representative steps and the surroundings of gaps are levels of their own.

Boxes are arrays in ns, for the page and Perfetto.
"""
