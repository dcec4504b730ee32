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
