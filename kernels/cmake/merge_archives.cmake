# Adds the members of the archive ADDED to ARCHIVE. Run as: cmake -D AR=... -D RANLIB=... -D ARCHIVE=... -D ADDED=... -P this
set(script "open ${ARCHIVE}\naddlib ${ADDED}\nsave\nend\n")
file(WRITE ${ARCHIVE}.mri "${script}")
execute_process(COMMAND ${AR} -M INPUT_FILE ${ARCHIVE}.mri COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${RANLIB} ${ARCHIVE} COMMAND_ERROR_IS_FATAL ANY)
