# deploy/packages/install.cmake - what `cmake --install` puts where.
#
# Each component is one Debian package of deploy/packages/cpack.cmake:
#
#     gossipd     the daemon with LibTorch, its unit, user and example configuration
#     core        the daemon without it, likewise: processes of the user's train
#     gossipctl   the command-line client; needs no LibTorch
#     lab         gossip-lab and gossip-bench with their jobs and scenarios
#
#     cmake --install build/release --prefix /usr/local [--component gossipctl] [--strip]
#
# What an installation makes lies in build/…/deploy. It may have been root's before, so it is
# removed before it is made again, which the folder's owner may do; likewise CMake's list of files.
include(GNUInstallDirs)
install(CODE "string(JOIN _ list install_manifest \${CMAKE_INSTALL_COMPONENT})
  file(REMOVE \"${CMAKE_BINARY_DIR}/\${list}.txt\")" ALL_COMPONENTS)

# gossipd_install_programs(<component> <target>…): those of the targets that are built here.
function(gossipd_install_programs component)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
      if(GOSSIPD_TORCH_DIR)
        # Debian's LibTorch is found by the loader, another one only by its folder.
        set_target_properties(${target} PROPERTIES INSTALL_RPATH ${GOSSIPD_TORCH_DIR}/lib)
      endif()
    endif()
  endforeach()
endfunction()

gossipd_install_programs(gossipd gossipd gossip-export)
gossipd_install_programs(core gossipd-core)
gossipd_install_programs(gossipctl gossipctl)
gossipd_install_programs(lab gossip-lab gossip-bench)

# gossipd_install_text(<component> <folder> <file> [<old> <new>]…) installs a text whose paths
# depend on the prefix of the installation, which only the installation knows. The first new word
# also replaces the old one in the file's name.
function(gossipd_install_text component folder file)
  cmake_path(GET file FILENAME name)
  if(ARGC GREATER 4)
    string(REPLACE "${ARGV3}" "${ARGV4}" name ${name})
  endif()
  set(code "file(READ \"${CMAKE_SOURCE_DIR}/${file}\" text)\n")
  set(words ${ARGN})
  while(words)
    list(POP_FRONT words old new)
    string(APPEND code "string(REPLACE \"${old}\" \"${new}\" text \"\${text}\")\n")
  endwhile()
  set(out ${CMAKE_BINARY_DIR}/deploy/${component})
  file(MAKE_DIRECTORY ${out})
  install(CODE "${code}file(REMOVE \"${out}/${name}\")
    file(WRITE \"${out}/${name}\" \"\${text}\")" COMPONENT ${component})
  install(FILES ${out}/${name} DESTINATION ${folder} COMPONENT ${component})
endfunction()

# gossipd_install_made(<component> <folder> <name> <command>) installs what a command of the shell
# makes as '@OUT@/<name>'. The programs tell their own manual pages and completions.
function(gossipd_install_made component folder name command)
  set(out ${CMAKE_BINARY_DIR}/deploy/${component})
  file(MAKE_DIRECTORY ${out})
  string(REPLACE "@OUT@" "${out}" command "${command}")
  install(CODE "execute_process(COMMAND sh -c \"${command}\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT ${component})
  install(FILES ${out}/${name} DESTINATION ${folder} COMPONENT ${component})
endfunction()

find_package(Python3 COMPONENTS Interpreter QUIET)
function(gossipd_install_manual component program)
  if(Python3_FOUND AND TARGET ${program})
    # A page of ours that is newer than its program is kept: asking for each command's help takes
    # seconds.
    set(bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
    set(page "'@OUT@/${program}.1.gz'")
    gossipd_install_made(${component} ${CMAKE_INSTALL_MANDIR}/man1 ${program}.1.gz
      "[ -O ${page} ] && [ ${page} -nt '${bin}/${program}' ] || ( \
rm -f '@OUT@/${program}.1' ${page} && \
'${Python3_EXECUTABLE}' '${CMAKE_SOURCE_DIR}/deploy/man/make_pages.py' '${bin}' '@OUT@' \
${program} && gzip -9 --no-name '@OUT@/${program}.1' )")
  endif()
endfunction()
gossipd_install_manual(gossipd gossipd)
gossipd_install_manual(core gossipd-core)
gossipd_install_manual(gossipctl gossipctl)
gossipd_install_manual(lab gossip-lab)

# Below /usr/local zsh looks for completions in another folder.
install(CODE [[
  set(GOSSIPD_ZSH site-functions)
  if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
    set(GOSSIPD_ZSH vendor-completions)
  endif()]] COMPONENT gossipctl)
foreach(shell_file bash:bash-completion/completions/gossipctl zsh:zsh/\${GOSSIPD_ZSH}/_gossipctl
    fish:fish/vendor_completions.d/gossipctl.fish)
  string(REPLACE ":" ";" parts ${shell_file})
  list(GET parts 0 shell)
  list(GET parts 1 file)
  cmake_path(GET file PARENT_PATH folder)
  cmake_path(GET file FILENAME name)
  gossipd_install_made(gossipctl ${CMAKE_INSTALL_DATADIR}/${folder} ${name}
    "rm -f '@OUT@/${name}' && \
'${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/gossipctl' completion ${shell} >'@OUT@/${name}'")
endforeach()

# gossipd_install_service(<component> <name> <node.toml> [<old> <new>]…): what makes the program
# <name> a service of its own, from the files of gossipd's.
function(gossipd_install_service component name node_toml)
  install(FILES ${CMAKE_SOURCE_DIR}/daemon/README.md
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component})
  # /etc belongs to the two prefixes of the system. A node.toml that is there is the operator's.
  install(CODE "set(NODE_TOML \"${CMAKE_SOURCE_DIR}/deploy/packages/${node_toml}\")
    set(NAME ${name})" COMPONENT ${component})
  install(CODE [[
    set(GOSSIPD_ETC "${CMAKE_INSTALL_PREFIX}/etc")
    if(CMAKE_INSTALL_PREFIX MATCHES "^/usr(/local)?/?$")
      set(GOSSIPD_ETC /etc)
    endif()
    if(NOT EXISTS "$ENV{DESTDIR}${GOSSIPD_ETC}/${NAME}/node.toml")
      file(INSTALL "${NODE_TOML}" DESTINATION "${GOSSIPD_ETC}/${NAME}" RENAME node.toml)
    endif()]] COMPONENT ${component})
  gossipd_install_text(${component} lib/systemd/system deploy/gossipd.service gossipd ${name}
    ${ARGN} /usr/local "\${CMAKE_INSTALL_PREFIX}" /etc "\${GOSSIPD_ETC}")
  gossipd_install_text(${component} lib/sysusers.d deploy/packages/gossipd.conf
    gossipd ${name})
endfunction()
if(TARGET gossipd)
  gossipd_install_service(gossipd gossipd node.toml)
  # The service is nobody's in particular; homes have mode 0700.
  install(CODE "set(folder \"${GOSSIPD_TORCH_DIR}\")" COMPONENT gossipd)
  install(CODE [[
    while(folder)
      execute_process(COMMAND stat -Lc %A "${folder}" OUTPUT_VARIABLE mode)
      if(mode MATCHES "^d........[^xt]")
        message(WARNING "the service gossipd cannot start with this LibTorch: its user may not "
          "enter ${folder}. Build with one that all users can read: "
          "sudo deploy/torch-wheel.sh --choose wheel /opt/gossipd-torch")
      endif()
      string(REGEX REPLACE "/[^/]*$" "" folder "${folder}")
    endwhile()]] COMPONENT gossipd)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/jobs
    DESTINATION ${CMAKE_INSTALL_DATADIR}/gossipd COMPONENT gossipd)
endif()
# Its trainers are processes of other users, so its socket is where the members of its group get.
# A founder starts when the first of them has come.
gossipd_install_service(core gossipd-core node-core.toml
  "TimeoutStartSec=15min" "TimeoutStartSec=infinity"
  "--state-dir" "--set trainer.socket=/run/gossipd-core/trainer.sock --state-dir")
if(TARGET gossip-lab)
  set(lab_data ${CMAKE_INSTALL_DATADIR}/gossip-lab)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/tools/lab/jobs DESTINATION ${lab_data} COMPONENT lab)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/jobs/fashion-mnist.toml
    DESTINATION ${lab_data}/jobs COMPONENT lab)
  file(GLOB scenarios CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
    ${CMAKE_SOURCE_DIR}/tools/lab/scenarios/*.toml)
  foreach(scenario IN LISTS scenarios)
    gossipd_install_text(lab ${lab_data}/scenarios ${scenario} ../../../deploy/jobs ../jobs)
  endforeach()
endif()
