# deploy/packages/install.cmake - what `cmake --install` puts where.
#
# Each component is one Debian package of deploy/packages/cpack.cmake:
#
#     gossipd     the daemon with LibTorch, its unit, user and example configuration
#     gossipctl   the command-line client; needs no LibTorch
#     lab         gossip-lab and gossip-bench with their jobs and scenarios
#
#     cmake --install build/release --prefix /usr/local [--component gossipctl] [--strip]
include(GNUInstallDirs)

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
gossipd_install_programs(gossipctl gossipctl)
gossipd_install_programs(lab gossip-lab gossip-bench)

# gossipd_install_text(<component> <folder> <file> [<old> <new>]…) installs a text whose paths
# depend on the prefix of the installation, which only the installation knows.
function(gossipd_install_text component folder file)
  cmake_path(GET file FILENAME name)
  set(code "file(READ \"${CMAKE_SOURCE_DIR}/${file}\" text)\n")
  set(words ${ARGN})
  while(words)
    list(POP_FRONT words old new)
    string(APPEND code "string(REPLACE \"${old}\" \"${new}\" text \"\${text}\")\n")
  endwhile()
  install(CODE "${code}file(WRITE \"${CMAKE_BINARY_DIR}/deploy/${component}/${name}\" \"\${text}\")"
    COMPONENT ${component})
  install(FILES ${CMAKE_BINARY_DIR}/deploy/${component}/${name}
    DESTINATION ${folder} COMPONENT ${component})
endfunction()

if(TARGET gossipd)
  # /etc belongs to the two prefixes of the system. A node.toml that is there is the operator's.
  install(CODE "set(NODE_TOML ${CMAKE_SOURCE_DIR}/deploy/packages/node.toml)" COMPONENT gossipd)
  install(CODE [[
    set(GOSSIPD_ETC "${CMAKE_INSTALL_PREFIX}/etc")
    if(CMAKE_INSTALL_PREFIX MATCHES "^/usr(/local)?/?$")
      set(GOSSIPD_ETC /etc)
    endif()
    if(NOT EXISTS "$ENV{DESTDIR}${GOSSIPD_ETC}/gossipd/node.toml")
      file(INSTALL "${NODE_TOML}" DESTINATION "${GOSSIPD_ETC}/gossipd")
    endif()]] COMPONENT gossipd)
  gossipd_install_text(gossipd lib/systemd/system deploy/gossipd.service
    /usr/local "\${CMAKE_INSTALL_PREFIX}" /etc "\${GOSSIPD_ETC}")
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/packages/sysusers.conf
    DESTINATION lib/sysusers.d RENAME gossipd.conf COMPONENT gossipd)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/jobs
    DESTINATION ${CMAKE_INSTALL_DATADIR}/gossipd COMPONENT gossipd)
endif()
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
