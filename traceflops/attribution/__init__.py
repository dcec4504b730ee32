"""Whose work a kernel is: its launch, operator, phase, module; tables of kernels and operators.

    Prepared: activities of the chosen windows, idle gaps of the devices
        |
        |  work                                        idle time
        |  activity -> call -> op   (launching_ops)    gap -> slices of the launching thread's
        |     -> forward op         (scopes)                  time  (idle_slices)
        |     -> module, annotation (scopes, marks)       -> class  (idle_classes)
        |     -> phase, role, fate  (scopes, products,    -> name: function, operator, label
        |                            op_kernels)                    (host_events, named_slices)
        v                                              v
    owners by row of activities, -1: unknown          culprits: class, name, ns
        |                                              |
        v                                              v
    tables: kernels, operators, launchers,            IdleCulprits, Synchronisation,
    charged time, device work, trees                  HostBound (launch_lead)

All times are ns inside the chosen windows; each ns of work is charged to one activity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.attribution.charged import (
        OF_KERNEL,
        USUAL,
        ChargedKernel,
        RankTimes,
        charged_kernels,
    )
    from traceflops.attribution.culprits import (
        NO_CULPRITS,
        REST,
        Culprit,
        IdleClass,
        IdleCulprits,
        NamedIdle,
        culprits_of,
        culprits_of_devices,
        idle_culprits,
        joined_culprits,
        main_culprits,
        named_idle,
        named_times,
        with_culprits,
    )
    from traceflops.attribution.datatypes import (
        UNKNOWN_TYPE,
        float_type,
        operand_type,
        types_of_ops,
    )
    from traceflops.attribution.device_work import DeviceWork, ModuleWork, WorkSum, attributed_work
    from traceflops.attribution.device_work_tables import (
        HOST_OP,
        KERNEL,
        Owner,
        check_owner,
        work_owners,
    )
    from traceflops.attribution.graph_replays import created_nodes, has_replays, replays
    from traceflops.attribution.host_calls import (
        HostOperator,
        MemoryOperation,
        Synchronisation,
        host_operators,
        memory_operations,
        most_important,
        synchronisations,
    )
    from traceflops.attribution.host_events import (
        FACTS,
        SYSTEM_CALLS,
        facts_of_name,
        has_fact,
        is_of_library,
        standard_prefix,
    )
    from traceflops.attribution.idle_classes import CLASSES, TAGS, waiting_calls
    from traceflops.attribution.idle_slices import GapLengths, GapParts, gap_parts, places_in_groups
    from traceflops.attribution.kernels import (
        COPIES,
        KERNEL_TOTALS,
        KERNELS,
        MIGRATIONS,
        category_table,
        kernel_table,
        kernel_totals,
        memory_times,
        operators,
    )
    from traceflops.attribution.launch_lead import (
        HostBound,
        Launches,
        LaunchSums,
        Leads,
        host_bound,
        launching,
        leads,
        outstanding_launches,
    )
    from traceflops.attribution.launching_ops import launchers, ops_that_launched
    from traceflops.attribution.marks import host_marks, innermost_mark, instants
    from traceflops.attribution.op_kernels import Attribution, Fate, attribute, named
    from traceflops.attribution.products import (
        PRODUCT_ROLES,
        ProductRole,
        ProductRoles,
        product_roles,
    )
    from traceflops.attribution.range_labels import numbered, numberless, range_names
    from traceflops.attribution.scopes import (
        PHASES,
        Phase,
        Phases,
        Scopes,
        is_node,
        launch_scopes,
        module_class,
        phases,
    )
    from traceflops.attribution.time_tree import TREE_PHASES, TimeNode, time_trees
else:
    __getattr__ = lazy(__name__, __file__)
